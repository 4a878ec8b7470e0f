"""Parameters that another module's forward uses: a head that takes the embedding's weight by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class WatchedParameters(dict[str, Any]):
    """A module's ``_parameters`` that calls ``used`` before a parameter is looked up by its name."""

    def __init__(self, parameters: dict[str, Any], used: Callable[[], None]) -> None:
        super().__init__(parameters)
        self._used = used

    def __getitem__(self, name: str) -> Any:
        self._used()
        return super().__getitem__(name)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)  # copies and pickles are not watched

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        import copy

        return copy.deepcopy(dict(self), memo)


def watch(module: nn.Module, used: Callable[[], None]) -> None:
    """Calls ``used`` when the module's own parameters are used, until :func:`unwatch`."""
    module._parameters = WatchedParameters(module._parameters, used)


def unwatch(module: nn.Module) -> None:
    """Ends :func:`watch`; nothing for a module that is not watched."""
    if isinstance(module._parameters, WatchedParameters):
        module._parameters = dict(module._parameters)
