"""The groups of parameters that a client gives, as the configuration's section."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from ..optimizer import values_of
from ..units import is_kept


def group_section(groups: list[dict[str, Any]], parameters: Mapping[str, nn.Parameter]) -> list[dict[str, Any]]:
    """The "groups" section that a client's groups of parameters stand for. Their values follow at each step.

    A group without a parameter that trains has no entry: the Trainer makes one for LoRA.
    """
    names = {parameter: name for name, parameter in parameters.items() if parameter.requires_grad}
    _check_of_model(groups, names)
    section = []
    for number, group in enumerate(groups):
        values = values_of(group, number)
        matched = [names.pop(parameter) for parameter in group["params"] if parameter in names]
        if matched:
            section.append({"match": matched, "weight_decay": values.get("weight_decay", 0.0)})
    if names:
        first = next(iter(names.values()))
        raise ValueError(
            f"parameter {first} requires a gradient and is in no group of the optimizer ({len(names)} such): add it, or "
            "freeze it with requires_grad_(False)"
        )
    return section if len(section) > 1 else []


def _check_of_model(groups: list[dict[str, Any]], trained: Mapping[nn.Parameter, str]) -> None:
    """Raises ValueError for a parameter that no step would train: of another module, or a second time in the groups."""
    group_of: dict[nn.Parameter, int] = {}
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            if not parameter.requires_grad or is_kept(parameter):
                continue
            if parameter not in trained:
                raise ValueError(
                    f"parameter group {number} has a parameter that is not of the model and would never be trained (number {place}, "
                    f"of shape {list(getattr(parameter, 'ds_shape', parameter.shape))}): make one module of both and pass it as the "
                    "model, give the other its own optimizer, or freeze it with requires_grad_(False). Layers are replaced before "
                    "the optimizer is made"
                )
            if group_of.setdefault(parameter, number) != number:
                raise ValueError(f"parameter {trained[parameter]} is in parameter groups {group_of[parameter]} and {number}: leave it in one")
