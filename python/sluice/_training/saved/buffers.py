"""Buffers of a model in a checkpoint: those that its state_dict() would have."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import nn

from ..._errors import StorageError
from .. import ranks
from ..objects import stored

log = logging.getLogger("sluice")


def buffers_of(model: nn.Module, persistent: bool = True) -> dict[str, torch.Tensor]:
    """Each once, by its first name. ``persistent`` False: those that no state_dict() has."""
    named = {
        f"{prefix}{'.' if prefix else ''}{key}": buffer
        for prefix, module in model.named_modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and (key not in module._non_persistent_buffers_set) is persistent
    }
    first = {id(buffer): name for name, buffer in reversed(list(named.items()))}
    return {name: buffer for name, buffer in named.items() if first[id(buffer)] == name}


def copies_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the model's buffers in host memory, by name."""
    return {name: buffer.detach().to("cpu", copy=True) for name, buffer in buffers_of(model).items()}


def warn_of_missing(where: str, model: nn.Module) -> None:
    """Logs that a model goes on from states alone, without its buffers, such as the statistics of BatchNorm."""
    names = list(buffers_of(model))
    if names and ranks.rank() == 0:
        log.warning(
            "%s has no buffers: %d of the model start anew, %s first; save_checkpoint() and load_checkpoint() keep them",
            where, len(names), names[0],
        )  # fmt: skip


def check_buffers(path: str, model: nn.Module, values: Mapping[str, torch.Tensor], strict: bool) -> None:
    """Raises StorageError for buffers that cannot have the values and, with ``strict``, for those that only one side has."""
    here = buffers_of(model)
    left_out = buffers_of(model, persistent=False)  # earlier versions have saved them
    for name, buffer in here.items():
        if name in values and values[name].shape != buffer.shape:
            raise StorageError(
                f"{path} is of another model: its buffer {name} has shape {list(values[name].shape)}, and this model's has "
                f"{list(buffer.shape)}; load it into the model that it was saved from"
            )
        once = stored(buffer)
        if name in values and once.shape != buffer.shape:
            value = values[name]
            if not torch.equal(stored(value, like=buffer).expand_as(value), value):
                raise StorageError(
                    f"{path}: its buffer {name} has other values where this model's has one element in memory for several (shape "
                    f"{list(buffer.shape)}, expanded from {list(once.shape)}): register a clone() of the expanded tensor"
                )
    missing = [name for name in here if name not in values]
    added = [name for name in values if name not in here and name not in left_out]
    if missing or added:
        sides = [f"does not have {', '.join(missing)}"] if missing else []
        sides += [f"has {', '.join(added)}, which the model does not have"] if added else []
        found = f"{path} has other buffers than the model: it {' and '.join(sides)}"
        if strict:
            raise StorageError(f"{found}; load_module_strict=False of an engine loads those that both have")
        if ranks.rank() == 0:
            log.warning("%s: these keep the model's values, or are left out", found)


def set_buffers(model: nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Copies the saved values of buffers into those that the model has, each element in memory once."""
    with torch.no_grad():
        for name, buffer in buffers_of(model).items():
            if name in values:
                stored(buffer).copy_(stored(values[name], like=buffer))
