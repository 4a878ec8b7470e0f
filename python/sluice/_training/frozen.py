"""Parameters that an engine freezes: while it is made, those of a model that only computes; those that a script's optimizer leaves out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from . import ranks
from .owners import check_free
from .units import is_kept

log = logging.getLogger("sluice")

_NAMED = 5  # parameters that a warning names


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Freezes the parameters inside, so that no gradients and states are planned. Gives none that stay frozen.

    Raises ValueError for the model of another engine, which may train it.
    """
    check_free(model)
    given = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with _frozen(given):
        yield []
    for parameter in given:
        parameter.requires_grad_(True)


@contextlib.contextmanager
def left_out_frozen(model: nn.Module, groups: Iterable[Mapping[str, Any]] | None) -> Iterator[list[nn.Parameter]]:
    """Freezes and gives what trains and is in no group of a script's optimizer, with a warning; it keeps its values, as in DeepSpeed.

    None: there are no such groups. Groups without a parameter that trains are left to the checks inside. After an error
    inside, the parameters are as before. Raises ValueError for the model of another engine.
    """
    check_free(model)
    left_out = {} if groups is None else _left_out(model, groups)
    elements = sum(parameter.numel() for parameter in left_out.values())
    with _frozen(left_out.values()) as given:
        yield given
    if left_out and ranks.rank() == 0:
        more = ", ..." if len(left_out) > _NAMED else ""
        log.warning(
            "%d parameters (%d elements) require a gradient and are in no group of the optimizer. They are frozen now: steps leave their "
            "values, and checkpoints have none of them. Give them to the optimizer to train them: %s",
            len(left_out),
            elements,
            ", ".join(list(left_out)[:_NAMED]) + more,
        )


def _left_out(model: nn.Module, groups: Iterable[Mapping[str, Any]]) -> dict[str, nn.Parameter]:
    grouped = {parameter for group in groups for parameter in group["params"]}
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad and not is_lazy(parameter)]
    trained = {name: parameter for name, parameter in named if not is_kept(parameter)}
    found = {name: parameter for name, parameter in trained.items() if parameter not in grouped}
    return found if len(found) < len(trained) else {}


@contextlib.contextmanager
def _frozen(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    given = list(parameters)
    for parameter in given:
        parameter.requires_grad_(False)
    try:
        yield given
    except BaseException:
        for parameter in given:
            parameter.requires_grad_(True)
        raise


class FrozenInPasses:
    """Parameters of a model that only computes, which are frozen while one of their units is entered.

    In between they say whether they train as the script has set it: it makes an optimizer of them for a later engine.
    ``units``: the parameters that each one gathers.
    """

    def __init__(self, units: list[list[torch.Tensor]]) -> None:
        self._units = units
        self._entered: list[tuple[int, list[torch.Tensor]]] = []  # those that were frozen at each call

    def entering(self, unit: int) -> None:
        """Freezes those of the unit's parameters that are not, until :meth:`left`."""
        given = [parameter for parameter in self._units[unit] if parameter.requires_grad]
        for parameter in given:
            parameter.requires_grad_(False)
        self._entered.append((unit, given))

    def left(self, unit: int) -> None:
        """Ends the last :meth:`entering` of the unit."""
        place = next((place for place in reversed(range(len(self._entered))) if self._entered[place][0] == unit), None)
        if place is not None:
            _thaw(self._entered.pop(place)[1])

    def all_left(self) -> None:
        """Ends every :meth:`entering`."""
        for _, given in self._entered:
            _thaw(given)
        self._entered.clear()


def _thaw(parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.requires_grad_(True)
