"""Adam, AdamW and AMSGrad on host memory, with DeepSpeed's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import _core
from ..._lazy import submodule
from .._host_optimizer import HostOptimizer

__all__ = ["DeepSpeedCPUAdam", "FusedAdam"]


class DeepSpeedCPUAdam(HostOptimizer):
    """Adam and AdamW (``adamw_mode``, the default) at the speed of host memory.

    ``lr``: learning rate. ``betas``: decay of the two running averages, each in [0, 1). ``eps``: added to the
    denominator. ``weight_decay``: decoupled with ``adamw_mode``, otherwise added to the gradient. ``amsgrad``: divides by
    the largest second average so far. ``bias_correction``: corrects the averages of the first steps. All may differ by
    parameter group.

    States of each parameter, of its shape: ``exp_avg``, ``exp_avg_sq``, with ``amsgrad`` ``max_exp_avg_sq``; and
    ``step``, the number of its updates. Types and devices: :class:`sluice.ops._host_optimizer.HostOptimizer`.

    Raises ValueError for a value out of range, and for a group that an optimizer of another formula made.
    """

    _settings: tuple[str, ...] = ("fp32_optimizer_states", "adam_w_mode")
    _formula = "Adam"

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        self.adam_w_mode = adamw_mode
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "amsgrad": amsgrad,
        }
        super().__init__(model_params, defaults, fp32_optimizer_states)

    def _check_decay(self, group: dict[str, Any], number: int) -> None:
        decoupled = group.get("decoupled_weight_decay")  # of torch.optim alone
        if decoupled is None or not group.get("weight_decay") or bool(decoupled) == self.adam_w_mode:
            return
        does = "takes the decay off the weights" if self.adam_w_mode else "adds the decay to the gradient"
        note = "" if self.adam_w_mode else ". Accelerate does so for torch.optim.AdamW only"
        raise ValueError(
            f"parameter group {number} has decoupled_weight_decay={decoupled}, and adamw_mode={self.adam_w_mode} {does}: pass "
            f"adamw_mode={bool(decoupled)}{note}"
        )

    def _config(self, group: dict[str, Any]) -> _core.AdamConfig:
        return _core.AdamConfig(
            learning_rate=float(group["lr"]),
            beta1=float(group["betas"][0]),
            beta2=float(group["betas"][1]),
            epsilon=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            decoupled=self.adam_w_mode,
            bias_correction=bool(group["bias_correction"]),
            amsgrad=bool(group["amsgrad"]),
        )

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")


class FusedAdam(DeepSpeedCPUAdam):
    """DeepSpeed's Adam for weights on a GPU, for scripts that make one: :func:`sluice.initialize` takes its formula over.

    Arguments as of :class:`DeepSpeedCPUAdam`; ``adam_w_mode`` is its ``adamw_mode``. On its own it steps parameters in host
    memory. ``set_grad_none``: whether :meth:`zero_grad` drops gradients.

    Raises RuntimeError for ``amsgrad``, as DeepSpeed's.
    """

    _settings = (*DeepSpeedCPUAdam._settings, "set_grad_none")

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        self.set_grad_none = set_grad_none
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, adamw_mode=bool(adam_w_mode))

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drops the gradients, or zeroes them. ``set_to_none`` None: as the constructor was told."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


def __getattr__(name: str) -> Any:
    return submodule(__name__, ("cpu_adam", "fused_adam"), name)
