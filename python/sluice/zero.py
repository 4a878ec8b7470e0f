"""Models larger than memory: :class:`Init` builds them in files, :class:`GatheredParameters` shows their values."""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ._refusals import missing
from ._training.file_parameters import FileParameters
from ._training import ranks
from ._training.owners import Owner, owner_of
from ._training.passes import given
from ._training.passes.changes import Changes, show_changed
from .config import Config, Source, section_of
from .runtime.zero.partition_parameters import ZeroParamStatus

if TYPE_CHECKING:
    from ._training.offloaded import OffloadedModel

log = logging.getLogger("sluice")

__all__ = ["GatheredParameters", "Init", "register_external_parameter", "unregister_external_parameter"]


def _given_parameters(given: Any) -> list[torch.Tensor]:
    """Without None: Transformers gives a layer's bias where it has none."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, nn.Module):
        return list(given.parameters())
    if isinstance(given, Mapping):
        given = given.values()
    return [parameter for parameter in given if parameter is not None]


def _other_writes(parameter: torch.Tensor, owner: Owner) -> int:
    """A count that grows with writes outside of the contexts that keep them."""
    return parameter._version - owner.model.kept_writes.get(owner.name, 0)


class _Counted(NamedTuple):
    """A parameter that a context has gathered, given to it or with the unit of one that was."""

    parameter: torch.Tensor
    owner: Owner
    is_given: bool
    writes: int  # as :func:`_other_writes`, before the context


class GatheredParameters(contextlib.AbstractContextManager["GatheredParameters"]):
    """Inside the context the parameters have their whole values, in the data type that computes. Values taken
    inside the context (``.data``, ``.cpu()``, ``state_dict()``) stay valid after it.

    ``params``: a parameter, several, or a module. ``modifier_rank``: None for reading. 0: changes made inside the context are
    kept, in the master weights too, when the outermost context of the model has ended; with several ranks those of that rank.
    Until then masters, also those of a checkpoint, have the values from before.
    Values that cannot be set (not finite, of another shape, or in a new object, as with ``load_state_dict(assign=True)``) are
    a ValueError on all ranks, and none of the changes is kept. The end of the context raises ValueError for another parameter
    that was written to, unless through ``.data``. One that trains then has the values of its master again, on every rank;
    with bf16 they may be what was written, and a frozen one may keep that. Every rank enters and leaves the context.
    Parameters of no engine have their values anyway. With ``modifier_rank`` and several ranks, those of that rank are given to
    all at the end of the context, also where an exception ends it. Ranks that name several modifiers, or give other
    parameters or another order, get a ValueError, and no change is kept: of an engine, parameters are compared by name, others
    by shape and data type. Parameters of an engine that has ended are a ValueError, and so is a context inside another thread's
    pass, or its pass inside the context. ``fwd_module``: for a context inside that module's forward; the parameters are registered
    with it (:func:`register_external_parameter`), so that backward has them too. Without it, no engine trains meanwhile.
    """

    def __init__(
        self,
        params: torch.Tensor | nn.Module | Iterable[torch.Tensor],
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        if modifier_rank is not None and not 0 <= modifier_rank < ranks.world_size():
            raise ValueError(f"modifier_rank is {modifier_rank} of {ranks.world_size()} ranks: below that, or None for reading")
        self._params = _given_parameters(params) if enabled else []
        if fwd_module is not None:
            for parameter in self._params:
                register_external_parameter(fwd_module, parameter)  # type: ignore[arg-type]
                _gather_external(parameter, fwd_module, ())
        self._modifier = modifier_rank
        self._gathered: list[tuple[torch.Tensor, Owner]] = []
        self._shared: list[torch.Tensor] = []  # of no engine: all ranks get the values of the modifier
        self._changes = Changes()  # of what is gathered, unless it is for reading
        self._counted: list[_Counted] = []
        self._passes = contextlib.ExitStack()  # in which other threads are refused
        self._entered = contextlib.ExitStack()  # leaves the units

    def __enter__(self) -> GatheredParameters:
        owners = ((parameter, owner_of(parameter)) for parameter in self._params)
        self._gathered = [(parameter, owner) for parameter, owner in owners if owner is not None]
        known = {id(parameter) for parameter, _ in self._gathered}
        try:
            for model in self._models():
                self._passes.enter_context(model.hooks.shown())
            self._take_others([parameter for parameter in self._params if id(parameter) not in known])
            if self._modifier is not None and self._gathered and (refused := self._compare("begin", set())):
                raise ValueError(refused)  # before units come, which ranks that give them in several orders would wait for
            for loop, unit in dict.fromkeys((owner.model.loop, owner.unit) for _, owner in self._gathered):
                loop.show(unit)
                self._entered.callback(loop.hide, unit)
            show_changed(self._gathered)
            if self._modifier is not None:
                self._changes.begin(self._gathered)
        except BaseException:
            with self._passes:
                self._leave()
            raise
        for parameter, owner in self._gathered:
            parameter.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]
            owner.model.shown[owner.name] += 1
        self._counted = [_Counted(*one, id(one[0]) in known, _other_writes(*one)) for one in self._of_entered_units()]
        return self

    def _take_others(self, others: list[torch.Tensor]) -> None:
        """Parameters of no engine. Raises ValueError for those of one that has ended."""
        for parameter in others:
            if parameter.numel() != getattr(parameter, "ds_numel", parameter.numel()):
                raise ValueError(
                    f"a parameter of shape {list(parameter.ds_shape)} has no values: its engine was destroyed, or nothing uses it any "  # type: ignore[attr-defined]
                    "more. Keep the engine, and read values before destroy()"
                )
        self._shared = others if self._modifier is not None and others and ranks.meet() else []

    def _of_entered_units(self) -> Iterator[tuple[torch.Tensor, Owner]]:
        for model, unit in dict.fromkeys((owner.model, owner.unit) for _, owner in self._gathered):
            for name, parameter in model.units[unit].params:
                yield parameter, Owner(model, name, unit)

    def _models(self) -> list[OffloadedModel]:
        return list(dict.fromkeys(owner.model for _, owner in self._gathered))

    def __exit__(self, kind: Any = None, error: BaseException | None = None, trace: Any = None) -> None:
        with self._passes:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and (self._gathered or self._shared) and ranks.world_size() > 1:
            # Now: the process may end in the wait, if this rank alone is here.
            log.error("an exception ends GatheredParameters, whose end waits for the other ranks", exc_info=error)
        models, shared, written = self._models(), self._shared, self._written()
        try:
            refused = self._refused()
            if not refused and self._modifier is not None:
                self._changes.note(self._modifier)
        finally:
            self._hide()
        for one in written:
            if one.parameter.requires_grad:
                one.owner.model.unchanged.add(one.owner.name)
        for model in models:
            model.end_changes()
        if refused:
            raise ValueError(refused)
        if shared and self._modifier is not None:
            given.share(shared, self._modifier)
        if written and error is None:
            raise ValueError(_why_not_kept(written[0]))

    def _written(self) -> list[_Counted]:
        """What was written to, and may not be. Notes the writes to what may: equal values are no change, and are written all the same."""
        written = []
        for one in self._counted:
            if one.is_given and self._modifier is not None:
                one.owner.model.kept_writes[one.owner.name] = one.parameter._version - one.writes
            elif _other_writes(one.parameter, one.owner) != one.writes:
                written.append(one)
        return written

    def _refused(self) -> str:
        """Why changes cannot be kept, on any rank: the ranks do not give the same, or a script has set ``.data`` of another
        shape, or another parameter. Another one is taken out of the model again. Empty where they can.
        """
        if self._modifier is None or not (self._gathered or self._shared):
            return ""
        return self._compare("end", self._changes.mistakes())

    def _compare(self, place: str, refused: set[str]) -> str:
        assert self._modifier is not None
        return given.why_refused(given.given_by(self._modifier, self._gathered, self._shared, refused), place)

    def _hide(self) -> None:
        for parameter, owner in self._gathered:
            owner.model.shown[owner.name] -= 1
            if not owner.model.shown[owner.name]:  # an outer context may show it still
                parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
        self._leave()

    def _leave(self) -> None:
        self._changes.take_back()
        self._gathered, self._shared, self._counted = [], [], []
        self._entered.close()


def _why_not_kept(one: _Counted) -> str:
    why = "which without modifier_rank is for reading" if one.is_given else "which was not given it"
    has_apart = one.parameter.requires_grad and one.parameter.dtype != torch.bfloat16  # bf16 weights may be a part of the master
    stays = "" if has_apart else ". It is frozen or bf16, and may keep what was written: load a checkpoint"
    return (
        f"parameter {one.owner.name} was written to inside GatheredParameters, {why}: modifier_rank=0 keeps the change of a "
        f"parameter that is given{stays}"
    )


class Init(contextlib.AbstractContextManager["Init"]):
    """Inside the context, models are built with their parameters in files, where the configuration names a drive.

    A parameter is an ordinary tensor over a file in ``offload_param.nvme_path`` (or ``offload_optimizer.nvme_path``); the
    operating system writes it out when memory is short. ``sluice.initialize`` reads the files unit by unit and frees
    them. Without a drive, parameters are in memory.

    ``module``: one that exists already. ``dtype``: of floating parameters; None: as the model makes them.
    ``remote_device``: "cpu": in memory, also where the configuration names a drive; "nvme": in files, which need one.
    ``data_parallel_group``: that of all ranks, as ``sequence_data_parallel_group``. ``mem_efficient_linear`` changes
    nothing: linear layers are PyTorch's.

    Raises ValueError for what else DeepSpeed's Init takes, and OSError where the drive has no room.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Source | Config | None = None,
        config: Source | Config | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: Any = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
        sequence_data_parallel_group: Any = None,
        param_swapper: Any = None,
    ) -> None:
        if enabled:
            _refuse(
                (
                    ("data_parallel_group", None if _is_world(data_parallel_group) else data_parallel_group, _SHARED),
                    ("mpu", mpu, _SHARED),
                    ("zero_param_parallel_group", zero_param_parallel_group, _SHARED),
                    ("zero_quantized_weights", zero_quantized_weights, _EXACT),
                    ("zero_quantized_nontrainable_weights", zero_quantized_nontrainable_weights, _EXACT),
                    ("sequence_data_parallel_group", None if _is_world(sequence_data_parallel_group) else sequence_data_parallel_group, _SHARED),
                    ("param_swapper", param_swapper, 'leave it out: "nvme_path" of "offload_param" in the configuration names the drive'),
                )
            )
            if pin_memory:
                log.info('zero.Init(pin_memory=True): "pin_memory" of "offload_param" in the configuration decides')
        source = config_dict_or_path if config_dict_or_path is not None else config
        folder = _drive_of(source) if enabled and source is not None else None
        if enabled:
            folder = _remote(remote_device, folder)
        self._files = FileParameters(folder, dtype) if folder is not None or (enabled and dtype is not None) else None
        if module is not None and self._files is not None:
            for parameter in module.parameters():
                self._files.move(parameter)

    def __enter__(self) -> Init:
        if self._files is not None:
            self._files.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._files is not None:
            self._files.__exit__(*error)


_SHARED = "leave it out: ranks share the parameters of a model in one way only, all with all"
_EXACT = "leave it out: weights are not compressed, since results would have other bits"


def _is_world(group: Any) -> bool:
    return dist.is_available() and dist.is_initialized() and group is dist.group.WORLD


def _refuse(arguments: Iterable[tuple[str, Any, str]]) -> None:
    """Raises ValueError for the first argument that is given, with its advice."""
    for name, value, advice in arguments:
        if value is not None and value is not False:
            raise ValueError(f"zero.Init cannot follow {name}: {advice}")


def _remote(device: str | None, drive: str | None) -> str | None:
    """The drive for parameters, as ``remote_device`` of Init chooses."""
    device = str(getattr(device, "value", device))  # also DeepSpeed's OffloadDeviceEnum
    if device not in ("None", "none", "cpu", "nvme"):
        raise ValueError(f'remote_device is {device!r}: "cpu", "nvme", or None for what the configuration says')
    if device == "nvme" and drive is None:
        raise ValueError(
            'remote_device="nvme" has no drive: pass a configuration with "offload_param": {"device": "nvme", "nvme_path": ...} '
            "as config_dict_or_path"
        )
    return None if device == "cpu" else drive


def _drive_of(source: Source | Config) -> str | None:
    """The drive of a configuration, which may still have "auto" where the Trainer fills it in later."""
    zero = section_of(source, "zero_optimization")
    for section in ("offload_param", "offload_optimizer"):
        offload = zero.get(section)
        if isinstance(offload, Mapping) and offload.get("device") == "nvme":
            path = offload.get("nvme_path")
            first = path[0] if isinstance(path, list) and path else path
            if not isinstance(first, str):
                raise ValueError(f'zero_optimization.{section} has "device": "nvme" and no nvme_path')
            return first
    return None


_external: weakref.WeakKeyDictionary[nn.Module, dict[int, Any]] = weakref.WeakKeyDictionary()  # handles of hooks


def _gather_external(parameter: torch.Tensor, module: nn.Module, args: Any) -> None:
    owner = owner_of(parameter)
    if owner is not None:
        owner.model.hooks.borrow(owner.unit)


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """The forward of ``module`` uses a parameter of another module: it is gathered with it, and in backward.

    The model's own forward gathers a parameter without it, when it uses it; compiled code does not. May be called before
    the engine is made. Raises RuntimeError for what is no parameter.
    """
    if not isinstance(parameter, nn.Parameter):
        raise RuntimeError(f"an external parameter is a {type(parameter).__name__}, and no torch.nn.Parameter")
    handles = _external.setdefault(module, {})
    if id(parameter) not in handles:
        handles[id(parameter)] = module.register_forward_pre_hook(functools.partial(_gather_external, parameter))


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undoes :func:`register_external_parameter`. Raises RuntimeError for a parameter that is not registered."""
    handle = _external.get(module, {}).pop(id(parameter), None)
    if handle is None:
        raise RuntimeError(f"the parameter is not registered with this {type(module).__name__}")
    handle.remove()


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
