"""Hooks and ``retain_grad()`` of a unit's forward on an input, whose caller may use it too: they see the whole gradient."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

_Hook = Callable[[torch.Tensor], Any]
_Hooks = MutableMapping[int, _Hook]  # a tensor's, by the number of their handles


def give_hooks(stand_in: torch.Tensor, tensor: torch.Tensor) -> None:
    """Hooks that were registered with a stand-in go to the tensor of the unit's caller. ``handle.remove()`` works on.

    A stand-in's gradient is only that of the unit.
    """
    hooks: _Hooks | None = stand_in._backward_hooks
    for number, hook in list((hooks or {}).items()):
        assert hooks is not None
        hooks[number] = _nothing
        tensor.register_hook(functools.partial(_call, hooks, number, hook))  # type: ignore[no-untyped-call]
    if stand_in.retains_grad:
        retained = _Retained(stand_in)
        stand_in.register_hook(retained.note)  # type: ignore[no-untyped-call]
        tensor.register_hook(retained.keep)  # type: ignore[no-untyped-call]


def _nothing(gradient: torch.Tensor) -> None:
    return None


def _call(hooks: _Hooks, number: int, hook: _Hook, gradient: torch.Tensor) -> Any:
    return hook(gradient) if number in hooks else None


class _Retained:
    """Gives a stand-in that retains its gradient the whole one. PyTorch adds the unit's part to it before."""

    def __init__(self, stand_in: torch.Tensor) -> None:
        self._stand_in = weakref.ref(stand_in)  # its own graph has this object, and PyTorch's graphs are not collected
        self._before: torch.Tensor | None = None  # the gradient without that part
        self._is_noted = False

    def note(self, gradient: torch.Tensor) -> None:
        stand_in = self._stand_in()
        if stand_in is not None:
            self._before, self._is_noted = stand_in.grad, True

    def keep(self, gradient: torch.Tensor | None) -> None:
        stand_in = self._stand_in()
        if stand_in is None or gradient is None:
            return
        before = self._before if self._is_noted else stand_in.grad
        self._before, self._is_noted = None, False
        stand_in.grad = gradient.clone() if before is None else before + gradient
