"""``zero_grad()`` of a model and its modules while their gradients are an engine's: PyTorch's sees none of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import nn

from .absent import drop_gradients_of


def _of_part(part: nn.Module, set_to_none: bool = True) -> None:
    """Module.zero_grad of a part of a model."""
    drop_gradients_of(part.parameters())


def _parts(model: nn.Module) -> Iterator[nn.Module]:
    """Modules with PyTorch's own zero_grad that have parameters."""
    for part in model.modules():
        is_plain = type(part).zero_grad is nn.Module.zero_grad and not isinstance(part, torch.jit.ScriptModule)
        if part is not model and is_plain and next(part.parameters(), None) is not None:
            yield part


def replace(model: nn.Module, zero_grad: Callable[..., None]) -> None:
    """``zero_grad``: the model's. That of each module in it drops the gradients of its own parameters."""
    model.zero_grad = zero_grad  # type: ignore[method-assign]
    for part in _parts(model):
        part.zero_grad = functools.partial(_of_part, part)  # type: ignore[method-assign]


def restore(model: nn.Module) -> None:
    for module in (model, *_parts(model)):
        module.__dict__.pop("zero_grad", None)
