"""The parameters of each group in an optimizer's state: values are those of a place in a list, and must be of the same parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

NAMES = "param_names"  # as PyTorch has them in a state, for named parameters


def names_in(parameters: Mapping[str, torch.Tensor], group: Mapping[str, Any]) -> list[str]:
    """The names of a group's parameters, without those that are not among ``parameters``."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    return [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]


def check_order(what: str, saved: Sequence[Mapping[str, Any]], here: Sequence[Sequence[str]]) -> None:
    """Raises ValueError where a parameter of a saved group is in another group here. States of older versions have no names."""
    of_name = {name: number for number, names in enumerate(here) for name in names}
    for number, group in enumerate(saved):
        for name in group.get(NAMES) or ():
            if of_name.get(name, number) != number:
                raise ValueError(
                    f"{what} has {name} in parameter group {number}, and the optimizer in group {of_name[name]}: make it with the "
                    "groups of the saved one, in their order"
                )
