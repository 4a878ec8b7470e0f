"""DeepSpeed's hooks of ZeRO-3 as TRL takes them away while a policy generates, and puts them back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

__all__ = ["DeepSpeedZeRoOffload"]


class DeepSpeedZeRoOffload:
    """``optimizer.parameter_offload``. Sluice's hooks stay while weights are gathered, and cost nothing then.

    ``module``: the model. ``forward_hooks`` and ``backward_hooks``: none.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.forward_hooks: list[Any] = []
        self.backward_hooks: list[Any] = []

    def _register_deepspeed_module(self, module: nn.Module) -> None:
        """Does nothing: no hook was taken away."""


def no_external_parameters() -> Iterator[tuple[str, nn.Parameter]]:
    """``module.ds_external_parameters``: parameters are gathered with the unit that owns them."""
    return iter(())
