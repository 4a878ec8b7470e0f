"""SGD with momentum on host memory. DeepSpeed has no such optimizer; arguments and states are torch.optim.SGD's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._refusals import missing
from .. import _core
from ._host_optimizer import HostOptimizer

__all__ = ["CPUSGD"]


class CPUSGD(HostOptimizer):
    """SGD at the speed of host memory, by the formula of ``torch.optim.SGD``.

    ``lr``: learning rate. ``momentum``: decay of the momentum buffer; 0: none. ``dampening``: 1 - dampening multiplies
    the gradient in the buffer. ``weight_decay``: added to the gradient. ``nesterov``: needs momentum and no dampening.
    ``maximize``: goes up instead of down.

    States of each parameter, of its shape: with momentum ``momentum_buffer``; and ``step``, the number of its updates. Both
    begin anew where momentum is set after steps without it. Types and devices: :class:`sluice.ops._host_optimizer.HostOptimizer`.

    Raises ValueError for a value out of range, and for a group that an optimizer of another formula made.
    """

    _formula = "SGD"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults, fp32_optimizer_states)

    def _config(self, group: dict[str, Any]) -> _core.SgdConfig:
        return _core.SgdConfig(
            learning_rate=float(group["lr"]),
            momentum=float(group["momentum"]),
            dampening=float(group["dampening"]),
            weight_decay=float(group["weight_decay"]),
            nesterov=bool(group["nesterov"]),
            maximize=bool(group["maximize"]),
        )

    def _state(self, parameter: Any, names: tuple[str, ...]) -> dict[str, Any]:
        state = self.state[parameter]
        if state and "momentum_buffer" in names and state.get("momentum_buffer") is None:  # as torch.optim.SGD
            state.update(step=0, momentum_buffer=self._zeros(parameter))
        return super()._state(parameter, names)

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
