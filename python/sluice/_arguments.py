"""The arguments of `initialize`, `offload` and `plan`, by type: an error names the one that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

import torch
from torch import nn

from ._errors import wrong_type


def _is_module(value: Any) -> bool:
    return isinstance(value, nn.Module)


# By name: whether a value may be one, and what it should be. None is for the caller, except of a model.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_is_module, "a torch.nn.Module"),
    "module": (_is_module, "a torch.nn.Module"),
    "optimizer": (
        lambda value: isinstance(value, torch.optim.Optimizer) or callable(value),
        "a torch.optim.Optimizer, or a function that makes one",
    ),
    "lr_scheduler": (
        lambda value: hasattr(value, "step") or callable(value),
        "an object with step(), or a function that makes one from the optimizer",
    ),
    "collate_fn": (callable, "a function"),
    "resume": (lambda value: isinstance(value, bool), "True, False or None"),
}


def check(**given: Any) -> None:
    """Raises TypeError for an argument of another type than its name's."""
    for name, value in given.items():
        fits, expected = _KINDS[name]
        if not fits(value) and (value is not None or fits is _is_module):
            raise wrong_type(name, value, expected)


def names_or_classes(name: str, value: Any) -> list[Union[str, type]]:
    """One or several, as a list. Raises TypeError for anything else. ``name``: of the argument."""
    if isinstance(value, (str, type)):
        return [value]
    if not isinstance(value, Iterable):
        raise wrong_type(name, value, "names of modules, or classes")
    found = list(value)
    for number, each in enumerate(found):
        if not isinstance(each, (str, type)):
            raise wrong_type(f"{name}[{number}]", each, "the name of a module, or a class")
    return found
