"""DeepSpeed's name of the engine's class."""

from __future__ import annotations

from typing import Any

from .._refusals import missing
from ..engine import SluiceEngine as DeepSpeedEngine

__all__ = ["DeepSpeedEngine"]


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
