"""DeepSpeed's name of the class of an engine's optimizer."""

from __future__ import annotations

from typing import Any

from .._refusals import missing
from .._training.optimizer import SluiceOptimizer as DeepSpeedOptimizer

__all__ = ["DeepSpeedOptimizer"]


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
