"""DeepSpeed's ``runtime``, as far as scripts and libraries import it: schedulers, the engine's class, names of ZeRO."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["activation_checkpointing", "dataloader", "engine", "lr_schedules", "zero"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
