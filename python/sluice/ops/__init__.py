"""DeepSpeed's `ops`: drives and host optimizers. A part is imported when it is used; optimizers import PyTorch."""

from __future__ import annotations

from types import ModuleType

from .._lazy import submodule

__all__ = ["adagrad", "adam", "aio", "lion", "sgd"]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, __all__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
