"""Plans: where every byte of a run would live, before anything is allocated."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from . import _core
from ._errors import wrong_type
from ._machine import change_facts
from ._tables import html_table
from .config import Config, Source, load, text_of_dict

_TIERS = ("device", "host", "nvme")


class Plan:
    """Where every byte of a run would live. Made by :func:`sluice.plan`; shows itself as a table.

    ``data`` is the JSON object of ``sluice plan --json`` as a dict: ``parameters``, ``planned_bytes`` (by tier),
    ``budget_bytes``, ``rows``, ``disks``, ``bytes_per_step`` (by link), ``choices`` and more. Sizes are bytes.
    """

    def __init__(self, data: str, table: str, choices: list[str], notes: list[str]) -> None:
        self.data: dict[str, Any] = json.loads(data)
        self.table = table.rstrip("\n")
        self.choices = choices
        self.notes = notes

    def __str__(self) -> str:
        return "\n".join([*self.notes, self.table, *(f"chosen: {choice}" for choice in self.choices)])

    def __repr__(self) -> str:
        planned = self.data["planned_bytes"]
        tiers = ", ".join(f"{tier} {_core.format_bytes(planned[tier])}" for tier in _TIERS)
        return f"<sluice.Plan of {self.data['parameters']} parameters: {tiers}>"

    def _repr_html_(self) -> str:
        rows = [[row["component"], *(_core.format_bytes(row[tier]) for tier in _TIERS), row["note"]] for row in self.data["rows"]]
        rows.append(["planned", *(_core.format_bytes(self.data["planned_bytes"][tier]) for tier in _TIERS), ""])
        for name in ("budget", "least"):
            held = self.data.get(f"{name}_bytes")
            if held:
                rows.append([name, _core.format_bytes(held["device"]), _core.format_bytes(held["host"]), "", ""])
        caption = f"{self.data['parameters']:,} parameters, computed on {self.data['computes_on']}"
        return html_table(caption, ["", *_TIERS, ""], rows, self.choices)


def _model_of(model: Source) -> _core.ModelConfig:
    if isinstance(model, Mapping):
        return _core.parse_model_config(text_of_dict(model, "the model", "model"), "model")
    if not isinstance(model, (str, os.PathLike)):
        raise wrong_type("model", model, "a torch.nn.Module, or the path of a config.json or its dict")
    path = os.fspath(model)
    os.stat(path)  # FileNotFoundError, before anything is read
    return _core.load_model_config(path)


def plan(
    model: Any,
    config: Source | Config,
    *,
    placement: str = "configured",
    machine: Mapping[str, Any] | None = None,
    rates: str | os.PathLike[str] = "",
    units: Any = None,
) -> Plan:
    """Plans a run: the table of `sluice plan`, before anything is allocated.

    ``model``: a PyTorch module, which may be on the meta device, as :func:`sluice.initialize` would train it with these
    ``units``; or a Hugging Face ``config.json`` of type gpt2, as a path or a dict, as `sluice train` would.
    ``config``: a DeepSpeed JSON file, as a path, a dict or a :class:`sluice.config.Config`. ``placement``: "configured", or "resident" for everything on the
    device. ``machine``: facts that replace those of this machine, by the keys of :func:`sluice.machine_facts`. ``rates``: a
    file that ``sluice plan --probe --rates FILE`` wrote; the plan then has predicted seconds. With several ranks all of
    them call it for a module: they plan with the least of their machines.

    Raises :class:`sluice.DoesNotFit` with the table and changes that would fit, :class:`sluice.config.ConfigError`,
    FileNotFoundError, TypeError, and ValueError for an unknown placement or fact, and as :func:`sluice.machine_facts`.

    >>> print(sluice.plan("model.json", "ds.json", machine={"available_memory_bytes": 64 << 30}))
    """
    if placement not in ("configured", "resident"):
        raise ValueError(f'placement is "{placement}"; it must be "configured" or "resident"')
    if hasattr(model, "named_parameters"):
        if machine is not None or rates:
            raise ValueError("machine and rates are for models of a file, and this one is a PyTorch module")
        return _plan_of_module(model, config, units, placement)
    loaded = config if isinstance(config, Config) else load(config)
    facts = _core.probe_machine(loaded._parsed)
    if machine is not None:
        change_facts(facts, machine)
    path = os.fspath(rates)
    if path:
        _core.require_rates(path)
    made = _core.make_plan(loaded._parsed, _model_of(model), placement, facts, path)
    if machine is None:
        made.add_storage_choices()  # they are about this machine's drives
    return Plan(made.json(path), made.table(), made.choices, loaded.notes)


def _plan_of_module(model: Any, config: Source | Config, units: Any, placement: str) -> Plan:
    from ._arguments import check
    from ._training.offloaded import preview
    from ._training.owners import owner_of

    check(model=model)
    owner = next(filter(None, map(owner_of, model.parameters())), None)
    if owner is not None:
        raise ValueError(
            f"parameter {owner.name} belongs to an engine, which has its values, so the model cannot be planned anew: "
            "engine.report() has its plan. For another configuration plan the model before initialize(), after destroy(), or one of its class"
        )
    loop, choices = preview(model, config, units=units, resident=placement == "resident")
    return Plan(loop.plan_json, loop.plan_table, choices, loop.notes)
