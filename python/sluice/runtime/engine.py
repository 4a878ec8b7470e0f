"""DeepSpeed's name of the engine's class."""

from __future__ import annotations

from ..engine import SluiceEngine as DeepSpeedEngine

__all__ = ["DeepSpeedEngine"]
