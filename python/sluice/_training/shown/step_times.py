"""`wall_clock_breakdown`: a line of times in DeepSpeed's words after each step of an engine."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

import torch
from torch._compile import _disable_dynamo

from .. import ranks

log = logging.getLogger("sluice")


class StepTimes:
    """Seconds of an engine's calls since the step before, by part: "fwd", "bwd" and "step".

    Off, nothing is timed and no GPU is waited for. ``device``: where the model computes.
    """

    def __init__(self, device: torch.device, is_on: bool) -> None:
        self._device, self._is_on = device, is_on
        self._seconds = dict.fromkeys(("fwd", "bwd", "step"), 0.0)

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Counts what happens inside, calls that fail too. On a GPU it waits for the issued work, before and after."""
        if not self._is_on:
            yield
            return
        begin = self._now()
        try:
            yield
        finally:
            self._seconds[part] += self._now() - begin

    @_disable_dynamo
    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def end_step(self) -> None:
        """Rank 0 logs the line of `sluice train` (times_line in deepspeed_lines.cpp). The next step begins at zero."""
        if not self._is_on:
            return
        forward, backward, step = (f"{1e3 * seconds:.2f}" for seconds in self._seconds.values())
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        if ranks.rank() == 0:
            # Gradients are summed inside of backward, which no time of its own tells apart.
            log.info(
                "time (ms) | fwd: %s | bwd: %s | bwd_inner: %s | bwd_allreduce: 0.00 | step: %s", forward, backward, backward, step
            )
