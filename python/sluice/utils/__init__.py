"""DeepSpeed's ``utils``: the logger, states of parameters, modules that are gathered as one.

``safe_get_...`` and ``safe_set_...`` are about a parameter of an engine.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..runtime.dataloader import RepeatingLoader
from ._states import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_get_local_fp32_param,
    safe_get_local_grad,
    safe_get_local_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_grad,
    safe_set_local_optimizer_state,
)

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "RepeatingLoader",
    "get_z3_leaf_modules",
    "groups",
    "log_dist",
    "logger",
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
    "set_z3_leaf_modules",
    "unset_z3_leaf_modules",
]

logger = logging.getLogger("sluice")


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs a message of this rank, which is 0, if ``ranks`` is None or has 0 or -1 (all)."""
    if ranks is None or not {0, -1}.isdisjoint(ranks):
        logger.log(level, "[Rank 0] %s", message)


def set_z3_leaf_modules(model: nn.Module, leaf_module_classes: Iterable[type | str]) -> list[nn.Module]:
    """Modules of these classes, or names of classes, are gathered as one by an engine made later. Returns them.

    Raises ValueError where no module of the model is of such a class.
    """
    wanted = list(leaf_module_classes)
    names, classes = {w for w in wanted if isinstance(w, str)}, tuple(w for w in wanted if not isinstance(w, str))
    found = [module for module in model.modules() if type(module).__name__ in names or isinstance(module, classes)]
    if not found:
        raise ValueError(f"no module of the model is of the classes {wanted}")
    for module in found:
        module._z3_leaf = True  # type: ignore[assignment]
    return found


def unset_z3_leaf_modules(model: nn.Module, leaf_module_classes: Iterable[type | str]) -> list[nn.Module]:
    """Undoes :func:`set_z3_leaf_modules`. Returns the modules."""
    found = set_z3_leaf_modules(model, leaf_module_classes)
    for module in found:
        del module._z3_leaf
    return found


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that :func:`set_z3_leaf_modules` marked."""
    return [module for module in model.modules() if getattr(module, "_z3_leaf", False)]


def __getattr__(name: str) -> Any:
    if name == "groups":
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
