"""A model over memory tiers: its units, the hooks on them, and the loop of the extension below."""

from __future__ import annotations

import atexit
import json
import logging
import os
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .. import config as _config
from .._core import version as __version__
from ..config import ConfigError, Source
from ..runtime.zero.parameter_offload import no_external_parameters
from ..runtime.zero.partition_parameters import ZeroParamStatus
from . import devices, ranks
from .calls import calls
from .engine_module import engine_module
from .full_state_dict import FullStateDicts
from .passes.hooks import Hooks
from .passes.layers import schedule_line
from .owners import check_free, disown, own
from .report import Report
from .units import Choice, Unit, find_units, parameters_of
from .watched_loop import WatchedLoop

log = logging.getLogger("sluice")

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _make_loop(source: Source, settings: Mapping[str, Any], groups: ranks.Groups, **options: Any) -> Any:
    """An `_engine.Loop`. ``settings``: values by key path that replace those of the source."""
    options["ranks"], options["gather_ranks"] = groups
    texts = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in settings.items()]
    options["gpu"] = devices.current_gpu()
    make = engine_module().Loop
    if not isinstance(source, Mapping):
        return make(_config._path_of(source), None, [], texts, **options)
    try:
        return make(_config._NAME_OF_DICT, _config._text_of(source), [], texts, **options)
    except ConfigError as error:
        raise _config._without_positions(error) from None


def preview(model: nn.Module, source: Source, *, units: Choice = None, resident: bool = False) -> tuple[Any, list[str]]:
    """A loop with a plan of the model, which may be on the meta device, and nothing else; and the choices of the plan."""
    loop = _make_loop(source, {}, ranks.groups(), resident=resident, resume=None)
    found = find_units(model, units)
    for unit in found:
        loop.add_unit(unit.name, unit.params, unit.inside)
    loop.preview()
    return loop, _choices(loop, model, found)


def _choices(loop: Any, model: nn.Module, units: list[Unit]) -> list[str]:
    moves = json.loads(loop.plan_json)["bytes_per_step"]["h2d"] > 0
    line = schedule_line(model, units, int(loop.accumulation_steps)) if moves else None
    return [*loop.choices, *([line] if line else [])]


def _group_section(groups: list[dict[str, Any]], parameters: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
    """The "groups" section that a client's groups of parameters stand for. Their values follow at each step.

    A group without a parameter that trains has no entry: the Trainer makes one for LoRA.
    """
    names = {parameter: name for name, parameter in parameters.items() if parameter.requires_grad}
    section = []
    for group in groups:
        matched = [names.pop(parameter) for parameter in group["params"] if parameter in names]
        if not matched and any(parameter.requires_grad for parameter in group["params"]):
            raise ValueError("a parameter group has no parameter of the model, or only those of another group")
        if matched:
            section.append({"match": matched, "weight_decay": float(group.get("weight_decay", 0))})
    if names:
        first = next(iter(names.values()))
        raise ValueError(
            f"parameter {first} requires a gradient and is in no group of the optimizer ({len(names)} such): add it, or "
            "freeze it with requires_grad_(False)"
        )
    return section if len(section) > 1 else []


def _check_reads_only(model: nn.Module) -> None:
    """Raises ValueError for a module whose forward writes to a weight that trains: the next update would undo it."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None and module.weight.requires_grad:
            raise ValueError(
                f"module {name} has max_norm, with which its forward writes to its weight: normalize the rows that it gives instead"
            )


class OffloadedModel:
    """Parameters of a model with their homes at the memory tiers of a configuration. Private: engines are made of it.

    After the constructor the parameters are empty, except inside a forward or backward of their unit; ``ds_shape``,
    ``ds_numel``, ``ds_id`` and ``ds_status`` say what they are.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        *,
        optimizer: Mapping[str, Any] | None = None,
        groups: list[dict[str, Any]] | None = None,
        units: Choice = None,
        resident: bool = False,
        resume: bool | None = None,
        progress: bool = False,
    ) -> None:
        """``optimizer``: a section that replaces the configuration's. ``groups``: of a client; None: those of the source."""
        devices.check_has_values(model)
        check_free(model)
        _check_reads_only(model)
        self.model = model
        self.units = find_units(model, units)
        self.parameters = parameters_of(self.units)
        settings: dict[str, Any] = {} if optimizer is None else {"optimizer": optimizer}
        if groups is not None:
            settings.update({"sluice.groups": _group_section(groups, self.parameters), "sluice.no_decay": "none"})
        groups_of_ranks = ranks.groups()
        loop = _make_loop(source, settings, groups_of_ranks, resident=resident, resume=resume)
        calls.configure(loop.comms_logger)
        self.loop = WatchedLoop(loop, [unit.name for unit in self.units], groups_of_ranks[0], progress)
        self.dtype = _DTYPES[self.loop.dtype.name]
        self.gradient_dtype = _DTYPES[self.loop.gradient_dtype.name]
        self._units_of = {name: index for index, unit in reversed(list(enumerate(self.units))) for name, _ in unit.params}
        for unit in self.units:
            self.loop.add_unit(unit.name, unit.params, unit.inside)
        self._describe_parameters()
        ranks.check_agreement(self._facts())
        ranks.share([*self.parameters.values(), *model.buffers()])
        self.loop.initialize()
        self._first_step = int(self.loop.step)
        self.device = torch.device(self.loop.device)
        devices.move_buffers(model, self.device, self.dtype)
        self.hooks = Hooks(model, self.units, self.loop)
        self._state_dicts = FullStateDicts(model, self.parameters, self.loop)
        _open.add(self)
        _loops.add(self.loop)

    def _facts(self) -> dict[str, Any]:
        """What all ranks have in common."""
        keys = ("micro_batch_size", "accumulation_steps", "train_batch_size", "clipping", "zero_stage", "optimizer_values")
        facts = {key: getattr(self.loop, key) for key in keys}
        facts.update({"sluice": __version__, "torch": torch.__version__, "data type": str(self.dtype)})
        for name, parameter in self.parameters.items():
            trains = "trained" if parameter.requires_grad else "frozen"
            facts[f"parameter {name}"] = f"{list(parameter.shape)}, {trains}"
        return {**facts, "units": [unit.name for unit in self.units]}

    def _describe_parameters(self) -> None:
        for index, (name, parameter) in enumerate(self.parameters.items()):
            parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
            parameter.ds_numel = parameter.numel()  # type: ignore[attr-defined]
            parameter.ds_id = index  # type: ignore[attr-defined]
            parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
            parameter.ds_active_sub_modules = set()  # type: ignore[attr-defined]
            own(parameter, self, name, self._units_of[name])
        self.model.ds_external_parameters = no_external_parameters  # type: ignore[assignment]

    def compile_units(self, options: Mapping[str, Any]) -> None:
        """By torch.compile, those that contain no other unit."""
        containers = {index for unit in self.units for index in unit.inside}
        for index, unit in enumerate(self.units):
            if index not in containers:
                unit.module.compile(**options)

    def check_parameters(self) -> None:
        """Raises ValueError for a parameter that came into the model later and wants to be trained: no unit has it."""
        known = set(self.parameters.values())
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter not in known:
                raise ValueError(
                    f"parameter {name} came into the model after the engine, which does not train it: add, replace or resize layers before"
                )

    def configured_groups(self) -> list[dict[str, Any]]:
        """The groups of the configuration, as those of an optimizer."""
        return [{**values, "params": [self.parameters[name] for name in names]} for names, values in self.loop.groups]

    def state_dict(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Copies of the weights in the data type that computes, and of the buffers, by the names of the model.

        They are in CPU memory.
        """
        whole: dict[str, torch.Tensor] = {}
        wanted = None if names is None else set(names)
        first_names = {parameter: name for name, parameter in self.parameters.items()}
        buffers = dict(self.model.named_buffers(remove_duplicate=False))
        for name in self.model.state_dict(keep_vars=True):
            if wanted is not None and name not in wanted:
                continue
            value = self.model.get_parameter(name) if name not in buffers else buffers[name]
            first = first_names.get(value)  # type: ignore[call-overload]
            if first is None:
                whole[name] = value.detach().to("cpu", copy=True)
            elif first in whole and first != name:
                whole[name] = whole[first]  # tied
            else:
                whole[name] = self.loop.parameter(first)
        return whole

    def report(self) -> Report:
        """Bytes moved and seconds waited since the start, and the plan as data."""
        steps = int(self.loop.step) - self._first_step
        plan = json.loads(self.loop.plan_json)
        return Report({**self.loop.counters(), "steps": steps, "plan": plan, "choices": _choices(self.loop, self.model, self.units)})

    def close(self) -> None:
        """Commits the last step, and takes the hooks off the model. The parameters stay empty. A second call does nothing."""
        if self not in _open:
            return
        _open.discard(self)
        self.hooks.remove()
        self._state_dicts.remove()
        for parameter in self.parameters.values():
            disown(parameter)
        try:
            self.loop.finish()
        finally:
            _loops.discard(self.loop)
            self.loop.close()


_open: weakref.WeakSet[OffloadedModel] = weakref.WeakSet()
_loops: weakref.WeakSet[WatchedLoop] = weakref.WeakSet()  # those too whose model is gone, and whose graph is not


@atexit.register
def _end() -> None:
    """A script that ends has its last step committed, and no thread of a loop outlives Python."""
    for end in [*(model.close for model in list(_open)), *(loop.close for loop in list(_loops))]:
        try:
            end()
        except Exception:
            log.exception("the end of training failed")


def _forget() -> None:
    """A forked child has no thread of its parent's engines, so it ends none of them."""
    _open.clear()
    _loops.clear()


os.register_at_fork(after_in_child=_forget)
