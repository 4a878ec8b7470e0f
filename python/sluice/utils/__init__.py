"""DeepSpeed's ``utils``: the logger, states of parameters, modules that are gathered as one.

``safe_get_...`` and ``safe_set_...`` are about a parameter of an engine.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._arguments import check, names_or_classes
from .._refusals import missing
from ..runtime.dataloader import RepeatingLoader
from . import logging, tensor_fragment
from .logging import log_dist, logger
from .tensor_fragment import *

if TYPE_CHECKING:
    from torch import nn

    from .nvtx import instrument_w_nvtx

__all__ = [
    "RepeatingLoader",
    "get_z3_leaf_modules",
    "groups",
    "instrument_w_nvtx",
    "log_dist",
    "logger",
    "logging",
    "nvtx",
    "set_z3_leaf_modules",
    "tensor_fragment",
    "unset_z3_leaf_modules",
    "zero_to_fp32",
]
__all__ += tensor_fragment.__all__

_MODULES = ("groups", "nvtx", "zero_to_fp32")


def _mark(model: nn.Module, classes: Iterable[type | str], flag: bool, raise_if_not_found: bool) -> list[nn.Module]:
    check(model=model)
    wanted = names_or_classes("leaf_module_classes", classes)
    names, types = {w for w in wanted if isinstance(w, str)}, tuple(w for w in wanted if not isinstance(w, str))
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        kind = type(module)
        if isinstance(module, types) or not names.isdisjoint((kind.__name__, f"{kind.__module__}.{kind.__qualname__}")):
            module._z3_leaf = flag  # type: ignore[assignment]
            found.append(module)

    model.apply(visit)
    if not found and raise_if_not_found:
        raise ValueError(f"no module of the model is of the classes {wanted}")
    return found


def set_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Modules of these classes, or names of classes, are gathered as one by an engine made later.

    Returns them, inner ones first. Raises ValueError where no module of the model is of such a class, unless it may not.
    """
    return _mark(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: nn.Module, leaf_module_classes: Iterable[type | str], raise_if_not_found: bool = True
) -> list[nn.Module]:
    """Undoes :func:`set_z3_leaf_modules`. Returns the modules of these classes."""
    return _mark(model, leaf_module_classes, False, raise_if_not_found)


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that :func:`set_z3_leaf_modules` marked."""
    return [module for module in model.modules() if getattr(module, "_z3_leaf", False)]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "instrument_w_nvtx":
        return importlib.import_module(f"{__name__}.nvtx").instrument_w_nvtx
    raise missing(f"module {__name__!r}", name)


def __dir__() -> list[str]:
    return sorted(__all__)
