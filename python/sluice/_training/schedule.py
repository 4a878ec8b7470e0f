"""The learning rates of a configuration's "scheduler" section, as a scheduler object."""

from __future__ import annotations

from typing import Any

from ..runtime.lr_schedules import Scheduler


class ConfigScheduler(Scheduler):
    """The schedule of the configuration's "scheduler" section, with the methods of DeepSpeed's schedulers.

    ``loop`` computes the rates, and the betas where the schedule cycles them. It begins at the loop's next update.
    """

    def __init__(self, optimizer: Any, loop: Any) -> None:
        super().__init__(optimizer, -1)
        self._loop = loop
        self.follow_loop()

    def follow_loop(self) -> None:
        """Moves to the loop's next update, after a state was loaded."""
        self._move_to(int(self._loop.updates) - 1)

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next update, or to the one after ``last_batch_iteration``."""
        self._move_to(last_batch_iteration)

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        rate = float(self._loop.scheduled_rate(self.last_batch_iteration + 2))
        return [rate for _ in self.optimizer.param_groups]

    def _set(self) -> None:
        super()._set()
        betas = self._loop.scheduled_betas(self.last_batch_iteration + 2)
        for group in self.optimizer.param_groups:
            if betas is not None and "betas" in group:
                group["betas"] = betas
