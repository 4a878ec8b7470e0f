"""Lion on host memory, with DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import _core
from ..._lazy import submodule
from .._host_optimizer import HostOptimizer

__all__ = ["DeepSpeedCPULion", "FusedLion"]


class DeepSpeedCPULion(HostOptimizer):
    """Lion (Chen et al. 2023, Alg. 2) at the speed of host memory.

    ``lr``: learning rate. ``betas``: weight of the average in the update, and its decay, each in [0, 1).
    ``weight_decay``: decoupled. ``adamw_mode`` is Accelerate's, which passes it to every class; it changes nothing.

    States of each parameter, of its shape: ``exp_avg``; and ``step``, the number of its updates. Types and devices:
    :class:`sluice.ops._host_optimizer.HostOptimizer`.

    Raises ValueError for a value out of range, and for a group that an optimizer of another formula made.
    """

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        fp32_optimizer_states: bool = True,
        adamw_mode: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(model_params, defaults, fp32_optimizer_states)

    def _config(self, group: dict[str, Any]) -> _core.LionConfig:
        return _core.LionConfig(
            learning_rate=float(group["lr"]),
            beta1=float(group["betas"][0]),
            beta2=float(group["betas"][1]),
            weight_decay=float(group["weight_decay"]),
        )

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg",)


class FusedLion(DeepSpeedCPULion):
    """DeepSpeed's Lion for weights on a GPU, for scripts that make one: :func:`sluice.initialize` takes its formula over.

    Arguments as of :class:`DeepSpeedCPULion`. On its own it steps parameters in host memory. ``set_grad_none``: whether
    :meth:`zero_grad` drops gradients.
    """

    _settings = (*DeepSpeedCPULion._settings, "set_grad_none")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, lr, betas, weight_decay)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients, or zeroes them. ``set_to_none`` None: as the constructor was told."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


def __getattr__(name: str) -> Any:
    return submodule(__name__, ("cpu_lion", "fused_lion"), name)
