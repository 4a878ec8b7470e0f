"""DeepSpeed's name of the class of an engine's optimizer."""

from __future__ import annotations

from .._training.optimizer import SluiceOptimizer as DeepSpeedOptimizer

__all__ = ["DeepSpeedOptimizer"]
