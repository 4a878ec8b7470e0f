"""The place of FusedAdam in DeepSpeed."""

from . import FusedAdam

__all__ = ["FusedAdam"]
