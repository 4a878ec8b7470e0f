"""The place of DeepSpeedCPULion in DeepSpeed."""

from . import DeepSpeedCPULion

__all__ = ["DeepSpeedCPULion"]
