"""DeepSpeed's name of the error of a configuration."""

from __future__ import annotations

from typing import Any

from .._refusals import missing
from ..config import ConfigError as DeepSpeedConfigError

__all__ = ["DeepSpeedConfigError"]


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
