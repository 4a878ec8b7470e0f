"""Parameters that an engine freezes: of a model that only computes, and those that a script's optimizer leaves out."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from . import ranks
from .owners import check_free
from .units import is_kept

log = logging.getLogger("sluice")

_NAMED = 5  # parameters that a warning names


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Freezes the parameters; gives those that trained. After an error inside they train again, so that another try finds them.

    Raises ValueError for the model of another engine, which may train it.
    """
    check_free(model)
    with _frozen([parameter for parameter in model.parameters() if parameter.requires_grad]) as given:
        yield given


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
