"""``engine.tput_timer``: samples per second of an engine's steps, with the names of DeepSpeed's timer."""

from __future__ import annotations

import time

from torch._compile import _disable_dynamo

_UNCOUNTED_STEPS = 2  # of the start, as in DeepSpeed: memory is touched for the first time there


class ThroughputTimer:
    """Counts steps, and the seconds from each forward to the end of its ``engine.step()``.

    ``micro_step_count``: micro-batches of the epoch. ``global_step_count``: steps. ``epoch_count``: calls of
    :meth:`update_epoch_count`. The first two steps have no seconds.
    """

    def __init__(self) -> None:
        self.epoch_count = self.micro_step_count = self.global_step_count = 0
        self.total_elapsed_time = 0.0
        self._samples = 0
        self._begin: float | None = None

    def update_epoch_count(self) -> None:
        """A script's epoch has ended: :attr:`micro_step_count` begins anew."""
        self.epoch_count += 1
        self.micro_step_count = 0

    @_disable_dynamo
    def start(self) -> None:
        """A micro-batch begins. Again before its :meth:`stop`, it changes nothing."""
        if self._begin is None:
            self._begin = time.perf_counter()

    def stop(self, ended_samples: int) -> None:
        """A micro-batch has ended. ``ended_samples``: of the step that ended with it; 0 where it goes on."""
        seconds = 0.0 if self._begin is None else time.perf_counter() - self._begin
        self._begin = None
        self.micro_step_count += 1
        if self.global_step_count >= _UNCOUNTED_STEPS:
            self.total_elapsed_time += seconds
            self._samples += ended_samples
        self.global_step_count += int(ended_samples > 0)

    def avg_samples_per_sec(self) -> float:
        """Samples of all ranks in a second, since the third step; minus infinity before its end, as in DeepSpeed."""
        return self._samples / self.total_elapsed_time if self._samples else float("-inf")
