"""Adagrad on host memory, with DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import _core
from ..._lazy import submodule
from .._host_optimizer import HostOptimizer

__all__ = ["DeepSpeedCPUAdagrad"]


class DeepSpeedCPUAdagrad(HostOptimizer):
    """Adagrad at the speed of host memory, by the formula of ``torch.optim.Adagrad``.

    ``lr``: learning rate. ``eps``: added to the denominator. ``weight_decay``: added to the gradient. ``amsgrad`` is
    DeepSpeed's argument; Adagrad has no such form, so only False is taken. ``adamw_mode`` is Accelerate's,
    which passes it to every class; it changes nothing.

    States of each parameter, of its shape: ``exp_avg_sq``, the sum of squared gradients; and ``step``, the number of its
    updates. Types and devices: :class:`sluice.ops._host_optimizer.HostOptimizer`.

    Raises ValueError for a value out of range, and for a group that an optimizer of another formula made.
    """

    _formula = "Adagrad"

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
        adamw_mode: bool = False,
    ) -> None:
        if amsgrad:
            raise ValueError("amsgrad is a form of Adam, not of Adagrad; use sluice.ops.adam.DeepSpeedCPUAdam")
        defaults = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "amsgrad": False}
        super().__init__(model_params, defaults, fp32_optimizer_states)

    def _config(self, group: dict[str, Any]) -> _core.AdagradConfig:
        return _core.AdagradConfig(
            learning_rate=float(group["lr"]), epsilon=float(group["eps"]), weight_decay=float(group["weight_decay"])
        )

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg_sq",)


def __getattr__(name: str) -> Any:
    return submodule(__name__, ("cpu_adagrad",), name)
