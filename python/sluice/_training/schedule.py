"""The learning rates of a configuration's "scheduler" section, as a scheduler object."""

from __future__ import annotations

from typing import Any

import torch


class ConfigScheduler:
    """The schedule of the configuration's "scheduler" section, with the methods of DeepSpeed's schedulers.

    ``loop`` computes the rates: ``loop.scheduled_rate(update)``, counted from 1.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, loop: Any) -> None:
        self.optimizer, self._loop = optimizer, loop
        self.last_batch_iteration = -1
        self._set()

    def _set(self) -> None:
        rate = self._loop.scheduled_rate(self.last_batch_iteration + 2)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._last_lr = [rate for _ in self.optimizer.param_groups]

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next update, or to the one after ``last_batch_iteration``."""
        self.last_batch_iteration = self.last_batch_iteration + 1 if last_batch_iteration is None else last_batch_iteration
        self._set()

    def get_lr(self) -> list[float]:
        return list(self._last_lr)

    get_last_lr = get_lr

    def state_dict(self) -> dict[str, Any]:
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.last_batch_iteration = state_dict["last_batch_iteration"]
        self._set()
