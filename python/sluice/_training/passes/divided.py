"""Outputs of an engine whose gradients are divided by the micro-batches of a step, where no engine has divided the loss."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from .inputs import put

if TYPE_CHECKING:
    from ..watched_loop import WatchedLoop
    from .hooks import Hooks

_engines = 0  # whose backward runs


@contextlib.contextmanager
def begun_by_engine() -> Iterator[None]:
    """For a backward that an engine begins: gradients of outputs are not divided in it, whosever they are."""
    global _engines
    _engines += 1
    try:
        yield
    finally:
        _engines -= 1


class _Divided(torch.autograd.Function):
    """An output's stand-in outside the model, with its memory and version.

    A loss that is computed from another output passes its gradient on inside the model. So each gradient is divided once,
    where hooks on both outputs would divide it twice.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, loop: WatchedLoop) -> torch.Tensor:
        ctx.loop = loop
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return (gradient if _engines else gradient / ctx.loop.accumulation_steps), None


class _Outputs:
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by `id`: an output, and its stand-in
        self._seen: set[int] = set()  # containers: one may contain itself

    def swapped(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._stand_in(value)
        if isinstance(value, tuple):
            parts = [self.swapped(part) for part in value]
            if all(new is part for new, part in zip(parts, value)):
                return value
            return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
        if id(value) in self._seen:
            return value
        self._seen.add(id(value))
        if isinstance(value, (list, dict)):
            for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
                if (new := self.swapped(part)) is not part:
                    put(value, key, new)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                part = getattr(value, field.name, None)
                if (new := self.swapped(part)) is not part:
                    object.__setattr__(value, field.name, new)  # it may be frozen
        return value

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.grad_fn is None:
            return tensor
        if id(tensor) not in self._made:
            made = _Divided.apply(tensor, self._hooks.loop)
            # Before a hook of the script's, which may fail. It must not lead to `made`: PyTorch's graphs are not collected.
            made.register_hook(functools.partial(_begin_backward, self._hooks))
            self._made[id(tensor)] = tensor, made
        return self._made[id(tensor)][1]


def _begin_backward(hooks: Hooks, gradient: torch.Tensor) -> None:
    hooks.begin_backward()


def divided_outputs(output: Any, hooks: Hooks) -> Any:
    """A forward's output, with stand-ins for its tensors that need a gradient: in tuples, lists, dicts and dataclasses.

    Lists, dicts and dataclasses stay the objects that they are.
    """
    return output if hooks.loop.accumulation_steps == 1 else _Outputs(hooks).swapped(output)
