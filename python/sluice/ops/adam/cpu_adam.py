"""The place of DeepSpeedCPUAdam in DeepSpeed."""

from . import DeepSpeedCPUAdam

__all__ = ["DeepSpeedCPUAdam"]
