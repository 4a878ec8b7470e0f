"""The optimizer and the parameter groups that a script gives for an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from ..._errors import wrong_type
from ...config import Config, Source, section_of
from ..optimizer import check_groups, optimizer_section


class Client(NamedTuple):
    """The script's own optimizer and groups, beside the configuration. ``section``: the "optimizer" section that stands for the first."""

    optimizer: torch.optim.Optimizer | None = None
    section: dict[str, Any] | None = None
    groups: list[dict[str, Any]] | None = None  # those of the optimizer, or without one those that differ from the configuration's


def client_of(
    optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None,
    model_parameters: Iterable[Any] | None,
    model: nn.Module,
    source: Source | Config,
) -> Client:
    """Reads the arguments of ``initialize()``; calls ``optimizer`` if it is a function.

    Raises TypeError and ValueError for optimizers that no engine takes.
    """
    groups = None if model_parameters is None else _groups_of(model_parameters)
    if optimizer is not None:
        given = list(model.parameters()) if groups is None else groups
        made = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(given)
        return Client(made, optimizer_section(made), made.param_groups)
    if groups is not None:
        defaults = section_of(source, "optimizer").get("params")
        check_groups(groups, defaults if isinstance(defaults, Mapping) else {})
    return Client(groups=groups)


def _groups_of(model_parameters: Iterable[Any]) -> list[dict[str, Any]]:
    """DeepSpeed's ``model_parameters``: parameters, or dicts of groups. Raises TypeError, ValueError for a group without any."""
    name = "model_parameters"
    if isinstance(model_parameters, torch.Tensor):
        raise wrong_type(name, model_parameters, "a list of parameters or of groups")
    given = _list(name, model_parameters)
    if not given or not isinstance(given[0], dict):
        return [{"params": _parameters(name, given)}]
    for number, group in enumerate(given):
        if not isinstance(group, dict):
            raise wrong_type(f"{name}[{number}]", group, "a group, a dict as those before")
        if "params" not in group:
            raise ValueError(f'{name}[{number}] has no "params": a group is a dict with its parameters under this key')
    return [{**group, "params": _parameters(f'{name}[{number}]["params"]', group["params"])} for number, group in enumerate(given)]


def _list(name: str, given: Any) -> list[Any]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise wrong_type(name, given, "a list of parameters or of groups")
    return list(given)


def _parameters(name: str, given: Any) -> list[torch.Tensor]:
    """One parameter, several, or several with their names. ``name``: of them, in errors."""
    many = [given] if isinstance(given, torch.Tensor) else _list(name, given)
    found: list[Any] = [each[1] if isinstance(each, tuple) and len(each) == 2 else each for each in many]
    for number, each in enumerate(found):
        if not isinstance(each, torch.Tensor):
            raise wrong_type(f"{name}[{number}]", each, "a parameter")
    return found
