"""DeepSpeed's ``runtime``, as far as scripts and libraries import it: schedulers, classes of engines, names of ZeRO."""

from __future__ import annotations

from types import ModuleType

from .._lazy import submodule

__all__ = ["activation_checkpointing", "base_optimizer", "config", "dataloader", "engine", "lr_schedules", "utils", "zero"]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, __all__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
