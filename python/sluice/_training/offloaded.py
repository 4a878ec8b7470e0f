"""A model over memory tiers: its units, the hooks on them, and the loop of the extension below."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import _core
from .._environment.openmp import spinning_line
from ..config import Config, Source
from ..runtime.zero.parameter_offload import no_external_parameters
from . import devices, file_parameters, open_loops, ranks
from .calls import calls
from .engine_module import DTYPES, make_loop, outside_budget
from .full_state_dict import FullStateDicts
from .passes.changes import set_changes
from .passes.described import describe, undescribe
from .passes.hooks import Hooks
from .passes.layers import schedule_line
from .owners import check_free, disown, own
from .report import Report
from .saved import checkpoint
from .start.agreement import check_agreement
from .start.facts import check_shared, facts_of, kept_of
from .start.groups import group_section
from .units import Choice, Unit, find_units, is_kept, parameters_of, prepare_values
from .watched_loop import WatchedLoop

if TYPE_CHECKING:
    from .._engine import Loop

log = logging.getLogger("sluice")


def preview(model: nn.Module, source: Source | Config, *, units: Choice = None, resident: bool = False) -> tuple[Loop, list[str]]:
    """A loop with a plan of the model, which may be on the meta device, and nothing else; and the choices of the plan.

    With several ranks all of them call it: they plan for the poorest.
    """
    groups = ranks.groups()
    loop = make_loop(source, {}, groups, resident=resident, resume=None)
    try:
        found = find_units(model, units)
        for unit in found:
            loop.add_unit(unit.name, unit.params, unit.inside)
        loop.preview()
    finally:
        ranks.close(groups)
    return loop, _choices(loop, model, found)


def _choices(loop: Loop, model: nn.Module, units: list[Unit]) -> list[str]:
    plan = json.loads(loop.plan_json)
    moves = plan["bytes_per_step"]["h2d"] > 0
    schedule = schedule_line(model, units, int(loop.accumulation_steps)) if moves else None
    computes_with_openmp = plan["computes_on"] == "the host" and plan["threads"]["compute"] > 1
    waits = spinning_line() if computes_with_openmp else None
    return [*loop.choices, *(line for line in (schedule, waits) if line)]


def _check_reads_only(model: nn.Module) -> None:
    """Raises ValueError for a module whose forward writes to a weight that trains: the next update would undo it."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None and module.weight.requires_grad:
            where = f"module {name}" if name else f"the model, a {type(module).__name__},"
            raise ValueError(f"{where} has max_norm, with which its forward writes to its weight: normalize the rows that it gives")


class OffloadedModel:
    """Parameters of a model with their homes at the memory tiers of a configuration. Private: engines are made of it.

    After the constructor the parameters are empty, except inside a forward or backward of their unit; ``ds_shape``,
    ``ds_numel``, ``ds_id`` and ``ds_status`` say what they are, ``partition_numel()`` how much of them is this rank's. An
    operation on an empty one is a RuntimeError.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source | Config,
        *,
        optimizer: Mapping[str, Any] | None = None,
        groups: list[dict[str, Any]] | None = None,
        has_schedule: bool = True,
        units: Choice = None,
        resident: bool = False,
        resume: bool | None = None,
        progress: bool = False,
        scales_losses: bool = True,
        only_computes: bool = False,
    ) -> None:
        """``optimizer``: a section that replaces the configuration's. ``groups``: of a client; None: those of the source.

        ``has_schedule`` False: without the source's schedule. ``scales_losses``: the caller applies the loss scale of fp16.
        ``only_computes``: nothing trains, whatever ``requires_grad`` says later; :meth:`give_way` is for an engine that trains.
        """
        directories = open_loops.directories_of(source, commits=resume is not None)
        check_free(model)
        self.units = find_units(model, units)
        devices.warn_if_bound()
        devices.check_has_values(model)
        _check_reads_only(model)
        self.model = model
        self.parameters = parameters_of(self.units)
        self._known = frozenset(self.parameters.values())  # looked at in each step
        settings: dict[str, Any] = {**directories.settings(), **({} if optimizer is None else {"optimizer": optimizer})}
        if not has_schedule:
            settings["scheduler"] = None
        if groups is not None:
            settings.update({"sluice.groups": group_section(groups, self.parameters), "sluice.no_decay": "none"})
        self._groups = ranks.groups()
        self._loop = make_loop(source, settings, self._groups, resident=resident, resume=resume)
        self.only_computes = only_computes
        self._hooks: list[Hooks | FullStateDicts] = []
        self.shown: collections.Counter[str] = collections.Counter()  # parameters, by open GatheredParameters
        self.changes: dict[str, torch.Tensor] = {}  # values that were given in those, to be set when the last one has ended
        self.unchanged: set[str] = set()  # written to in those, and to have their values again
        self.kept_writes: dict[str, int] = {}  # by parameter: writes in contexts that keep them
        self.frozen: list[nn.Parameter] = []  # by the engine, until it ends
        self.user: Callable[[], Any] | None = None  # a weak reference to the engine or the optimizer that a script has
        with self.undone_on_error():
            self._add_units(progress, scales_losses)
            self._begin(groups or [], directories, commits=resume is not None)

    def _add_units(self, progress: bool, scales_losses: bool) -> None:
        if self._loop.comms_logger["enabled"]:  # else as sluice.comm.configure() has set it
            calls.configure(self._loop.comms_logger)
        self.loop = WatchedLoop(self._loop, [unit.name for unit in self.units], self._groups[0], progress, self.only_computes)
        self.dtype = DTYPES[self.loop.dtype.name]
        self.gradient_dtype = DTYPES[self.loop.gradient_dtype.name]
        self._units_of = {name: index for index, unit in reversed(list(enumerate(self.units))) for name, _ in unit.params}
        if self.dtype == torch.float16 and not scales_losses:
            raise ValueError("fp16 has a loss scale, which a loop of one's own does not apply: use bf16, or sluice.initialize")
        for unit in self.units:
            self.loop.add_unit(unit.name, unit.params, unit.inside)
        prepare_values(self.parameters, dict(self.model.named_buffers()))
        self._places = {tensor: (tensor.device, tensor.dtype) for tensor in [*self.parameters.values(), *self._kept()]}

    def _kept(self) -> list[torch.Tensor]:
        return list(kept_of(self.model).values())

    def _begin(self, groups: list[dict[str, Any]], directories: open_loops.Directories, commits: bool) -> None:
        self._describe_parameters()
        kept = kept_of(self.model)
        check_agreement(facts_of(self.units, self.parameters, kept, groups))
        check_shared(kept)
        ranks.share([*self.parameters.values(), *kept.values()])
        open_loops.begin(self._loop, directories)
        self.loop.initialize()
        open_loops.add(self._loop, self.loop, self._groups, commits=commits)
        if ranks.rank() == 0:
            for line in self.loop.notes:
                warns = line.startswith("warning: ") or " has no effect in " in line
                log.log(logging.WARNING if warns else logging.INFO, line)
        self._first_step = int(self.loop.step)
        if self._first_step > 0:
            checkpoint.warn_of_missing("the state that the run resumes from", self.model)
        self.device = torch.device(self.loop.device)
        devices.move(self._kept(), self.device, self.dtype)
        self.renew_hooks()
        self.loop.guard([parameter for _, parameter in unit.params] for unit in self.units)

    def renew_hooks(self) -> None:
        """Sets the hooks, again where they were: Lightning removes all of a model before it makes an engine to evaluate."""
        for hooks in self._hooks:
            hooks.remove()
        self.hooks = Hooks(self.model, self.units, self.loop, self.only_computes, keeps=self)
        self.state_dicts = FullStateDicts(self.model, self.parameters, self.by_unit(self.parameters), self.loop)
        self._hooks = [self.hooks, self.state_dicts]

    @contextlib.contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """After an error inside, the model is as it was: another engine can be made of it.

        Frozen parameters and buffers have been rounded to the data type that computes. With several ranks the values are
        gone: the others are elsewhere.
        """
        try:
            yield
        except BaseException:
            self._release()
            values: list[tuple[torch.Tensor, torch.Tensor]] = []
            try:
                if open_loops.is_open(self._loop) and self._groups[0] is None:
                    values = self._values_before()
            finally:
                open_loops.end(self._loop, finishes=False)  # which empties the parameters
                ranks.close(self._groups)  # also those of a loop that is not open yet
            self._set(values)
            for parameter in self.parameters.values():  # the error may have come before their values moved
                undescribe(parameter)
            raise

    def _set(self, values: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for tensor, value in values:
            tensor.data = value
            undescribe(tensor)

    @outside_budget()
    def _values_before(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Parameters and buffers, with their values where the constructor found them."""
        trained = {name for names, _ in self.loop.groups for name in names}  # requires_grad may have changed since
        values = []
        for names in self.by_unit(self.parameters):
            others = [name for name in names if name not in trained]
            found = dict(zip(others, self.loop.parameters(others), strict=True))
            for name in names:
                parameter = self.parameters[name]
                value = found.pop(name) if name in found else self.loop.master(name)
                values.append((parameter, file_parameters.placed(parameter, value.to(*self._places[parameter]))))
        return [*values, *self._kept_before()]

    @outside_budget()
    def _kept_before(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        # Those without a place came later.
        return [(tensor, tensor.to(*self._places[tensor])) for tensor in self._kept() if tensor in self._places]

    def _release(self) -> None:
        for hooks in self._hooks:
            hooks.remove()
        for parameter in self.parameters.values():
            disown(parameter)
        vars(self.model).pop("ds_external_parameters", None)  # with it a saved model could only be loaded beside this package

    def _describe_parameters(self) -> None:
        for index, (name, parameter) in enumerate(self.parameters.items()):
            describe(parameter, index)
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
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and parameter not in self._known and not is_kept(parameter):
                raise ValueError(
                    f"parameter {name} came into the model after the engine, which does not train it: add, replace or resize layers before"
                )

    def unit_of(self, name: str) -> int:
        """The index of the unit that owns a parameter."""
        return self._units_of[name]

    def configured_groups(self) -> list[dict[str, Any]]:
        """The groups of the configuration, as those of an optimizer."""
        return [{**values, "params": [self.parameters[name] for name in names]} for names, values in self.loop.groups]

    def state_dict(self, without: Collection[str] = (), keeps: bool = True) -> dict[str, Any]:
        """Copies of the weights in the data type that computes, and of the buffers, by the names of the model.

        They are in CPU memory. ``without``: names of what is left out, and is not read. ``keeps``: as for the copies.
        """
        return self.state_dicts.copies(without, keeps)

    def by_unit(self, names: Iterable[str]) -> list[list[str]]:
        """Names of parameters, those of a unit together. On a drive each change of a unit writes all of its states."""
        found: dict[int, list[str]] = {}
        for name in names:
            found.setdefault(self._units_of[name], []).append(name)
        return list(found.values())

    def check_hidden(self, what: str) -> None:
        """Raises ValueError inside GatheredParameters, whose end sets what was changed in it. ``what``: does not go on there, in words."""
        shown = next((+self.shown).elements(), None)
        if shown is not None:
            raise ValueError(f"{what} inside GatheredParameters, which shows {shown}: leave its context first")

    @outside_budget()
    def end_changes(self) -> None:
        """Sets the parameters that were changed inside GatheredParameters, when the last one has ended. Every rank calls it.

        Raises ValueError for a change that cannot be set: none of them is.
        """
        if any(self.shown.values()):
            return
        changes, unchanged = self.changes, ranks.of_any(self.unchanged)
        self.changes, self.unchanged = {}, set()
        for names in [] if self.only_computes else self.by_unit(sorted(unchanged - changes.keys())):
            weights = dict(zip(names, self.loop.parameters(names), strict=True))
            masters = {name: self.loop.master(name) for name in names}  # of bf16 weights that were written to, and the rest: perhaps no numbers
            self.loop.set_parameters({name: torch.where(one.isfinite(), one, weights[name].to(one)) for name, one in masters.items()})
        set_changes(self, changes)

    def report(self) -> Report:
        """Bytes moved and seconds waited since the start, and the plan as data."""
        steps = int(self.loop.step) - self._first_step
        plan = json.loads(self.loop.plan_json)
        return Report({**self.loop.counters(), "steps": steps, "plan": plan, "choices": _choices(self.loop, self.model, self.units)})

    def close(self) -> None:
        """Commits the last step, and takes the hooks off the model. A second call does nothing.

        The parameters have their values again, as masters where they train, on the device and in the data type that they came
        with; so another engine may follow. They stay empty where :meth:`stays_empty` says why, and where they cannot be read:
        that is logged. Raises ValueError inside GatheredParameters, between the backward that has updated units and step(), and as :func:`open_loops.finish_alone`: then nothing has ended.
        """
        if not open_loops.is_open(self._loop):
            return
        self.check_hidden("the engine would end")
        if self.loop.updates_in_backward:
            self.hooks.recover_between_passes()
            if self.loop.waits_for_step:
                raise ValueError("the engine would end in the middle of a step, whose backward has updated units (optimizer_in_backward): call step() first")
        values = self._values_to_leave()
        open_loops.finish_alone(self._loop)
        self._release()
        try:
            open_loops.end(self._loop)
        finally:
            self._set(values)
            for parameter in self.frozen:
                parameter.requires_grad_(True)

    def give_way(self) -> None:
        """As :meth:`close`, where an engine that trains comes after one that only computes.

        Raises ValueError where the model would stay empty; then nothing has changed.
        """
        why = self.stays_empty()
        if self.parameters and why is not None:
            raise ValueError(
                f"the model has an engine without an optimizer, which cannot give way to one that trains, since the model would stay empty: {why}. "
                "Make the engine that trains first: an engine without an optimizer computes over it. Or build the model again for the second one"
            )
        rounded = {dtype for _, dtype in self._places.values() if dtype.is_floating_point and dtype.itemsize > self.dtype.itemsize}
        self.close()
        log.log(
            logging.WARNING if rounded else logging.INFO,
            "an engine without an optimizer gives way to one that trains its model: calls of the former are errors from now on%s",
            f", and the values were rounded to its {str(self.dtype).removeprefix('torch.')}" if rounded else "",
        )

    def stays_empty(self) -> str | None:
        """Why :meth:`close` leaves the parameters empty; None: it gives them their values."""
        if self._groups[0] is not None:
            return "its values are those of several ranks"
        rows = {row["component"]: row for row in json.loads(self.loop.plan_json)["rows"]}
        if rows["weights"]["nvme"] > 0 or any(map(file_parameters.is_in_file, self.parameters.values())):
            return "its values are on a drive"
        needed = sum(parameter.ds_numel * self._places[parameter][1].itemsize for parameter in self.parameters.values())  # type: ignore[attr-defined]
        free = _core.available_memory_bytes()
        return f"its values take {_core.format_bytes(needed)}, and {_core.format_bytes(free)} of memory are free" if needed > free else None

    def _values_to_leave(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Pairs as of :meth:`_values_before`. Parameters that stay empty have empty tensors, in their own data type."""
        why = self.stays_empty()
        if why is None:
            try:
                self.hooks.abandon()
                return self._values_before()
            except (MemoryError, OSError, RuntimeError, ValueError) as error:
                log.warning("the model stays empty: its values cannot be read (%s)", error)
        else:
            log.info("the model stays empty: %s", why)
        places = ((parameter, *self._places[parameter]) for parameter in self.parameters.values())
        empty = [(parameter, torch.empty(0, device=device, dtype=dtype)) for parameter, device, dtype in places]
        return [*empty, *self._kept_before()]
