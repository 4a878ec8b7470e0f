"""DeepSpeed's ``checkpoint``: helpers for state dicts. Checkpoints themselves: ``engine.save_checkpoint``."""

from __future__ import annotations

from types import ModuleType

from .._lazy import submodule

__all__ = ["utils"]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, __all__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
