"""Full values in the state dicts of a model whose parameters are empty between passes."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .watched_loop import WatchedLoop


class FullStateDicts:
    """Hooks on the ``state_dict()`` of a model and its modules, which put the values in that the tiers hold.

    Libraries that save adapters or weights call it on the model itself. Values are copies in the data type that computes;
    tied parameters stay one tensor. With ``keep_vars=True`` parameters stay as they are. ``parameters``: by first name.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], loop: WatchedLoop) -> None:
        self._model, self._loop = model, loop
        self._wanted: set[str] | None = None  # names of the model that copies() asks for
        self._filled: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()  # the last, by first name
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        places = [value for module in model.modules() for value in module._parameters.values() if value is not None]
        self._tied = {self._names[value] for value in self._names if sum(value is place for place in places) > 1}
        fill = functools.partial(FullStateDicts._fill, self)  # PyTorch sets an attribute of it, which methods have not
        self._handles = [module.register_state_dict_post_hook(fill) for module in model.modules() if module._parameters]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def copies(self, wanted: set[str] | None) -> dict[str, Any]:
        """The model's state dict in CPU memory, or of it what is wanted. None of its tensors is the model's own."""
        self._loop.check_open()
        self._wanted = wanted
        try:
            found = self._model.state_dict()
        finally:
            self._wanted = None
        filled = set(map(id, self._filled.values()))
        return {
            name: value if id(value) in filled or not isinstance(value, torch.Tensor) else value.detach().to("cpu", copy=True)
            for name, value in found.items()
            if wanted is None or name in wanted
        }

    def _fill(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        if _asks_for_names():
            return
        for key, parameter in module._parameters.items():
            name = None if parameter is None else self._names.get(parameter)
            value = state_dict.get(prefix + key)
            if name is None or value is None or isinstance(value, nn.Parameter):
                continue
            if self._wanted is not None and prefix + key not in self._wanted:
                continue
            if value.shape == parameter.ds_shape:  # type: ignore[union-attr]  # gathered
                continue
            state_dict[prefix + key] = self._value(name, state_dict)

    def _value(self, name: str, state_dict: Mapping[str, Any]) -> torch.Tensor:
        before = self._filled.get(name)
        if name in self._tied and before is not None and any(value is before for value in state_dict.values()):
            return before
        filled: torch.Tensor = self._loop.parameter(name)
        self._filled[name] = filled
        return filled


# PEFT takes only the keys of these state dicts, on rank 0 alone, where other ranks would be waited for.
_NAMES_ONLY = {"adapter_state_dict", "adapter_state_dict_load_map"}


def _asks_for_names() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "torch.nn.modules.module"):
        frame = frame.f_back
    return frame.f_code.co_name in _NAMES_ONLY and frame.f_globals.get("__name__") == "peft.utils.other"
