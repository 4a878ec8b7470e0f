"""Full values in the state dicts of a model whose parameters are empty between passes."""

from __future__ import annotations

import collections
import functools
import mmap
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import ranks
from .engine_module import outside_budget
from .owners import is_here
from .passes.absent import Absent
from .watched_loop import WatchedLoop

HOW_TO_LOAD = (
    "an engine's parameters are empty between passes: load_checkpoint() loads a checkpoint of save_checkpoint(). Weights alone are "
    "loaded inside sluice.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0), by "
    "engine.module.load_state_dict()"
)

_LARGE_BYTES = 64 << 10


class _UnitReads:
    """Reads parameters for a state dict, and with one the others of its unit: each read gathers all of the unit.

    ``units``: names of the parameters of each unit.
    """

    def __init__(self, loop: WatchedLoop, units: Iterable[Sequence[str]]) -> None:
        self._loop = loop
        self._unit_of = {name: names for names in units for name in names}
        self._ahead: dict[str, torch.Tensor] = {}  # for that dict and that version of the weights
        self._dict: Callable[[], object] = lambda: None  # a weak reference
        self._version = -1

    def end(self, state_dict: Mapping[str, Any]) -> None:
        """The dict is filled."""
        if self._dict() is state_dict:
            self.clear()

    def clear(self) -> None:
        self._ahead.clear()
        self._dict = lambda: None

    def read(self, name: str, state_dict: Mapping[str, Any], without: Collection[str]) -> torch.Tensor:
        """``without``: names that are not asked for. What was read ahead for another dict, as that of a module inside, is not given."""
        if self._dict() is not state_dict or self._version != self._loop.weights_version:
            self._ahead, self._version = {}, self._loop.weights_version
            self._dict = weakref.ref(state_dict, self._forget) if isinstance(state_dict, collections.OrderedDict) else lambda: None
        if name not in self._ahead:
            is_kept = self._dict() is state_dict
            names = [each for each in self._unit_of[name] if each == name or (is_kept and each not in without)]
            self._ahead |= zip(names, self._loop.parameters(names), strict=True)
        return self._ahead.pop(name)

    def _forget(self, ended: object) -> None:
        if ended is self._dict:
            self._ahead.clear()


class FullStateDicts:
    """Hooks on the ``state_dict()`` of a model and its modules, which put the values in that the tiers hold.

    Libraries that save adapters or weights call it on the model itself. Values are copies in the data type that computes;
    tied parameters stay one tensor. With ``keep_vars=True`` parameters stay as they are. Other hooks of a script come after
    these, and see the values. ``parameters``: by first name. ``units``: first names of the parameters of each unit.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], units: Iterable[Sequence[str]], loop: WatchedLoop
    ) -> None:
        self._model, self._loop = model, loop
        self._reads = _UnitReads(loop, units)
        self._without: Collection[str] = ()  # names of the model that copies() leaves out
        self._keeps = True  # False: values are read with the other ranks, and dropped
        self._consolidated_at = -1  # calls over ranks when rank 0 alone was given values
        self._filled: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()  # the last, by first name
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        places = [value for module in model.modules() for value in module._parameters.values() if value is not None]
        self._tied = {self._names[value] for value in self._names if sum(value is place for place in places) > 1}
        modules = [module for module in model.modules() if module._parameters]
        self._handles = [_add_first(model, functools.partial(FullStateDicts._fill_others, self))]
        self._handles += [_add_first(module, functools.partial(FullStateDicts._fill, self)) for module in modules]
        self._handles += [module.register_load_state_dict_pre_hook(_refuse_load) for module in modules]

    def remove(self) -> None:
        """Removes the hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._reads.clear()

    @outside_budget()
    def copies(self, without: Collection[str], keeps: bool = True) -> dict[str, Any]:
        """The model's state dict in CPU memory, without some names. None of its tensors is the model's own.

        ``keeps`` False: empty. The rank takes part in the reads of the others, a unit at a time.
        """
        self._loop.check_open()
        self._without, self._keeps = without, keeps
        self._filled.clear()
        try:
            found = self._model.state_dict()
            self._fill_absent(found)  # which a script's hook has put there
        finally:
            self._without, self._keeps = (), True
            self._reads.clear()
        if not keeps:
            return {}
        filled = set(map(id, self._filled.values()))
        return {
            name: value if id(value) in filled or not isinstance(value, torch.Tensor) else value.detach().to("cpu", copy=True)
            for name, value in found.items()
            if name not in without and self._absent_name(value) not in without
        }

    def note_consolidated(self) -> None:
        """Rank 0 alone has been given the copies just made."""
        self._consolidated_at = ranks.calls_made() if ranks.world_size() > 1 else -1

    def _fill(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        if _asks_for_names():
            return
        for key, parameter in module._parameters.items():
            name = None if parameter is None else self._names.get(parameter)
            value = state_dict.get(prefix + key)
            if name is None or value is None or isinstance(value, nn.Parameter):
                continue
            if prefix + key in self._without:
                continue
            if not isinstance(value, Absent) and value.shape == parameter.ds_shape:  # type: ignore[union-attr]  # gathered
                continue
            state_dict[prefix + key] = self._value(name, state_dict)
        if prefix == "" and module is not self._model:  # whose last hook reads on
            self._reads.end(state_dict)

    def _fill_others(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        """After the hooks of all modules inside: what their ``_save_to_state_dict`` has put under names of its own."""
        if not _asks_for_names():
            self._fill_absent(state_dict)
            self._reads.end(state_dict)

    @outside_budget()
    def _fill_absent(self, state_dict: dict[str, Any]) -> None:
        for key, value in state_dict.items():
            name = self._absent_name(value)
            if name is not None and name not in self._without:
                filled = self._value(name, state_dict)
                state_dict[key] = filled if value.dtype == value._sluice_parameter.dtype else filled.to(value.dtype)

    def _absent_name(self, value: Any) -> str | None:
        """The parameter of what has no values, by its first name."""
        return self._names.get(value._sluice_parameter) if isinstance(value, Absent) else None

    def _value(self, name: str, state_dict: Mapping[str, Any]) -> torch.Tensor:
        before = self._filled.get(name)
        if name in self._tied and before is not None and any(value is before for value in state_dict.values()):
            return before
        filled = self._read(name, state_dict)
        if not self._keeps:
            filled = _zeros_like(filled)
        self._filled[name] = filled
        return filled

    def _read(self, name: str, state_dict: Mapping[str, Any]) -> torch.Tensor:
        """The values, read with all ranks; in the save of a dict that rank 0 alone has just been given, without asking others."""
        is_main = _is_main_of_save() if self._consolidated_at == ranks.calls_made() else None
        if is_main is None:
            return self._reads.read(name, state_dict, self._without)
        if ranks.rank() == 0:
            kept = self._filled.get(name)
            if kept is None:
                raise ValueError(
                    f"save_pretrained() reads {name} right after a state dict that was made for rank 0 alone, which is gone: the "
                    "other ranks do not take part. Pass that dict as state_dict=, or do not make it"
                )
            return kept
        if is_main:
            raise ValueError(
                f"save_pretrained() on rank {ranks.rank()} has no state dict, which was made for rank 0 alone, and would write the "
                "files of rank 0: pass is_main_process=accelerator.is_main_process"
            )
        parameter: Any = next(each for each, first in self._names.items() if first == name)
        return torch.empty(parameter.ds_shape, dtype=parameter.dtype, device="meta")  # which cannot be written to a file


def _zeros_like(values: torch.Tensor) -> torch.Tensor:
    """For a script's hooks, which may compute with them, and change them in place. Of large ones only pages that are written to take memory."""
    if values.nbytes < _LARGE_BYTES:
        return torch.zeros_like(values)
    try:
        pages = mmap.mmap(-1, values.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # a system that commits no more memory than it has
        return values.new_zeros(()).expand(values.shape)
    return torch.frombuffer(pages, dtype=values.dtype).view(values.shape)


def _refuse_load(module: nn.Module, state_dict: Mapping[str, Any], prefix: str, *others: Any) -> None:
    for key, parameter in module._parameters.items():
        if prefix + key in state_dict and parameter is not None and not is_here(parameter) and getattr(parameter, "ds_numel", 0) > 0:
            raise ValueError(f"parameter {prefix}{key}: {HOW_TO_LOAD}")


def _add_first(module: nn.Module, hook: Any) -> Any:
    """``hook``: no method, since PyTorch sets an attribute of it."""
    handle = module.register_state_dict_post_hook(hook)
    hooks: Any = module._state_dict_hooks  # an OrderedDict, whatever its annotation
    hooks.move_to_end(handle.id, last=False)
    return handle


# On ranks that are not the main process they ask for a state dict, and write none.
_SAVES = {"transformers.modeling_utils", "peft.peft_model"}


def _is_main_of_save() -> bool | None:
    """``is_main_process`` of the save_pretrained() of a library that asks for the state dict; None where none does."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "save_pretrained" and frame.f_globals.get("__name__") in _SAVES:
            return bool(frame.f_locals.get("is_main_process", True))
        frame = frame.f_back
    return None


# PEFT takes only the keys of these state dicts, on rank 0 alone, where other ranks would be waited for.
_NAMES_ONLY = {"adapter_state_dict", "adapter_state_dict_load_map"}


def _asks_for_names() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "torch.nn.modules.module"):
        frame = frame.f_back
    return frame.f_code.co_name in _NAMES_ONLY and frame.f_globals.get("__name__") == "peft.utils.other"
