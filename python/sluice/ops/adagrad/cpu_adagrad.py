"""The place of DeepSpeedCPUAdagrad in DeepSpeed."""

from . import DeepSpeedCPUAdagrad

__all__ = ["DeepSpeedCPUAdagrad"]
