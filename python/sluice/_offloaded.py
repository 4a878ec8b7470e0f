"""A model over memory tiers: its units, the hooks on them, and the loop of the extension below."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from . import config as _config
from ._engine_module import engine_module
from ._full_state_dict import FullStateDicts
from ._hooks import Hooks
from ._units import Choice, find_units, parameters_of
from .config import ConfigError, Source

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _make_loop(source: Source, settings: Mapping[str, Any], **options: bool | None) -> Any:
    """An `_engine.Loop`. ``settings``: values by key path that replace those of the source."""
    texts = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in settings.items()]
    make = engine_module().Loop
    if not isinstance(source, Mapping):
        return make(_config._path_of(source), None, [], texts, **options)
    try:
        return make(_config._NAME_OF_DICT, _config._text_of(source), [], texts, **options)
    except ConfigError as error:
        raise _config._without_positions(error) from None


def _device_of(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ValueError(f"parameter {name} is on the meta device: it has no values to train from")
        if parameter.device.type != "cpu":
            raise ValueError(
                f"parameter {name} is on {parameter.device}: leave the model in CPU memory, its weights are placed from there"
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
        settings: Mapping[str, Any] | None = None,
        units: Choice = None,
        resident: bool = False,
        resume: bool | None = None,
    ) -> None:
        _device_of(model)
        self.model = model
        self.loop = _make_loop(source, settings or {}, resident=resident, resume=resume)
        self.dtype = _DTYPES[self.loop.dtype.name]
        self.units = find_units(model, units)
        self.parameters = parameters_of(self.units)
        self.shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        for unit in self.units:
            self.loop.add_unit(unit.name, unit.params, unit.inside)
        self._describe_parameters()
        self.loop.initialize()
        for buffer in _floating_buffers(model):
            buffer.data = buffer.data.to(self.dtype)
        self.hooks = Hooks(model, self.units, self.loop)
        self._state_dicts = FullStateDicts(model, self.parameters, self.loop)

    def _describe_parameters(self) -> None:
        for index, parameter in enumerate(self.parameters.values()):
            parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
            parameter.ds_numel = parameter.numel()  # type: ignore[attr-defined]
            parameter.ds_id = index  # type: ignore[attr-defined]

    def state_dict(self, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
        """Copies of the weights in the data type that computes, and of the buffers, by the names of the model."""
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
                whole[name] = value.detach().clone()
            elif first in whole and first != name:
                whole[name] = whole[first]  # tied
            else:
                whole[name] = self.loop.parameter(first)
        return whole

    def close(self) -> None:
        """Commits the last step, and takes the hooks off the model. The parameters stay empty."""
        self.hooks.remove()
        self._state_dicts.remove()
        try:
            self.loop.finish()
        finally:
            self.loop.close()


def _floating_buffers(model: nn.Module) -> list[torch.Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]

