"""Hooks of torch.optim.Optimizer, where an engine's optimizer has methods of its own in place of PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def share(client: torch.optim.Optimizer, optimizer: torch.optim.Optimizer) -> None:
    """Hooks that are registered with either one are those of both."""
    for name in _HOOKS:
        setattr(optimizer, name, getattr(client, name))


def around_saving(state_dict: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    """A ``state_dict`` with the hooks around it, as PyTorch runs them."""

    @functools.wraps(state_dict)
    def hooked(self: Any) -> dict[str, Any]:
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = state_dict(self)
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, state)
            state = state if changed is None else changed
        return state

    return hooked


def around_loading(load_state_dict: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A ``load_state_dict`` with the hooks around it, as PyTorch runs them."""

    @functools.wraps(load_state_dict)
    def hooked(self: Any, state_dict: Any) -> None:
        state = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state)
            state = state if changed is None else changed
        load_state_dict(self, state)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    return hooked
