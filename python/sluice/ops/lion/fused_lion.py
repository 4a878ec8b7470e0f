"""The place of FusedLion in DeepSpeed."""

from . import FusedLion

__all__ = ["FusedLion"]
