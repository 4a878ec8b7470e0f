"""DeepSpeed's name of the error of a configuration."""

from __future__ import annotations

from ..config import ConfigError as DeepSpeedConfigError

__all__ = ["DeepSpeedConfigError"]
