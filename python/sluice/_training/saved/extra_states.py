"""Extra states of a model's modules in a checkpoint: those of ``get_extra_state()``, which its state_dict() has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ..._errors import StorageError
from .. import ranks

log = logging.getLogger("sluice")


def _modules_with_state(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Each once, by its first name. One that only gives a state could never take it back."""
    for name, module in model.named_modules():
        kind = type(module)
        if kind.get_extra_state is not nn.Module.get_extra_state and kind.set_extra_state is not nn.Module.set_extra_state:
            yield name, module


def states_of(model: nn.Module) -> dict[str, Any]:
    """By the name of their module."""
    return {name: module.get_extra_state() for name, module in _modules_with_state(model)}


def warn_of_missing(where: str, model: nn.Module) -> None:
    """Logs that modules go on without the extra state that they had at the save."""
    names = [name or type(module).__name__ for name, module in _modules_with_state(model)]
    if names and ranks.rank() == 0:
        log.warning(
            "%s has no extra states (get_extra_state): those of %d modules start anew, %s first; save_checkpoint() and "
            "load_checkpoint() keep them",
            where, len(names), names[0],
        )  # fmt: skip


def check_states(path: str, model: nn.Module, values: Mapping[str, Any]) -> None:
    """Raises StorageError for extra states that only one side has."""
    here = dict(_modules_with_state(model))
    missing = [name for name in here if name not in values]
    added = [name for name in values if name not in here]
    if missing or added:
        sides = [f"has none of {', '.join(map(repr, missing))}"] if missing else []
        sides += [f"has those of {', '.join(map(repr, added))}, which take none in the model"] if added else []
        raise StorageError(
            f"{path} has extra states (get_extra_state) of other modules than the model: it {' and '.join(sides)}; "
            "load_module_strict=False of an engine loads those that both have"
        )


def set_states(model: nn.Module, values: Mapping[str, Any]) -> None:
    """Gives the saved states to the modules that take them."""
    for name, module in _modules_with_state(model):
        if name in values:
            module.set_extra_state(values[name])
