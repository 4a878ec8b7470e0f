"""The optimizer and the parameter groups that a script gives for an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ...config import Config, Source, section_of as section_in
from ..optimizer import check_groups, groups_of, section_of


class Client(NamedTuple):
    """What a script gives beside the configuration. ``section``: the "optimizer" section that its optimizer stands for."""

    optimizer: torch.optim.Optimizer | None = None
    section: dict[str, Any] | None = None
    groups: list[dict[str, Any]] | None = None  # those of the optimizer, or without one those that differ from the configuration's


def client_of(
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None,
    model_parameters: Iterable[Any] | None,
    model: nn.Module,
    source: Source | Config,
) -> Client:
    """Of the arguments of ``initialize()``; a function makes the optimizer. Raises TypeError and ValueError for what no engine takes."""
    groups = None if model_parameters is None else groups_of(model_parameters)
    if optimizer is not None:
        given = list(model.parameters()) if groups is None else groups
        made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(given)
        return Client(made, section_of(made), made.param_groups)
    if groups is not None:
        defaults = section_in(source, "optimizer").get("params")
        check_groups(groups, defaults if isinstance(defaults, Mapping) else {})
    return Client(groups=groups)
