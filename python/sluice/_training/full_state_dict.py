"""Full values in the state dicts of a model whose parameters are empty between passes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class FullStateDicts:
    """Hooks on the ``state_dict()`` of a model and its modules, which put the values in that the tiers hold.

    Libraries that save adapters or weights call it on the model itself. Values are copies in the data type that computes;
    tied parameters stay one tensor. With ``keep_vars=True`` parameters stay as they are. ``parameters``: by first name.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter], loop: Any) -> None:
        self._loop = loop
        self._names: dict[torch.Tensor, str] = {parameter: name for name, parameter in parameters.items()}
        places = [value for module in model.modules() for value in module._parameters.values() if value is not None]
        self._tied = {self._names[value] for value in self._names if sum(value is place for place in places) > 1}
        fill = functools.partial(FullStateDicts._fill, self)  # PyTorch sets an attribute of it, which methods have not
        self._handles = [module.register_state_dict_post_hook(fill) for module in model.modules() if module._parameters]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _fill(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        for key, parameter in module._parameters.items():
            name = None if parameter is None else self._names.get(parameter)
            value = state_dict.get(prefix + key)
            if name is None or value is None or isinstance(value, nn.Parameter):
                continue
            if value.shape == parameter.ds_shape:  # type: ignore[union-attr]  # gathered
                continue
            state_dict[prefix + key] = self._value(name, state_dict)

    def _value(self, name: str, state_dict: Mapping[str, Any]) -> torch.Tensor:
        if name in self._tied:
            for value in state_dict.values():
                if getattr(value, "_sluice_name", None) == name:
                    return value
        filled: torch.Tensor = self._loop.parameter(name)
        filled._sluice_name = name  # type: ignore[attr-defined]
        return filled
