"""A line of a terminal for the step in progress: how much of it is done, and its seconds."""

from __future__ import annotations

import time
from typing import Any, TextIO

_SECONDS_BEFORE_SHOWN = 1.0
_SECONDS_BETWEEN = 0.2
_BAR_WIDTH = 24


class StepBar:
    """Shows how much of a step is done on ``stream``.

    The whole of a step is known from the step before: how often units were entered in it. Steps of less than a second
    show nothing, and so does a stream that is no terminal.
    """

    def __init__(self, stream: TextIO, clock: Any = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._begin: float | None = None  # of the step; None: before its first unit
        self._entered = 0
        self._before: tuple[int, float] | None = None  # units entered in the step before, and its seconds
        self._shown_at = 0.0
        self._is_shown = False

    def enter(self, step: int, name: str) -> None:
        """A unit of the step is entered."""
        now = self._clock()
        if self._begin is None:
            self._begin = now
        self._entered += 1
        if now - self._begin < _SECONDS_BEFORE_SHOWN or now - self._shown_at < _SECONDS_BETWEEN:
            return
        if not self._stream.isatty():
            return
        self._stream.write(f"\r\x1b[K{self._line(step, name, now - self._begin)}")
        self._stream.flush()
        self._shown_at, self._is_shown = now, True

    def _line(self, step: int, name: str, seconds: float) -> str:
        if self._before is None:
            return f"step {step}: {name}, {seconds:.0f} s"
        share = min(self._entered / self._before[0], 1.0)
        filled = round(share * _BAR_WIDTH)
        bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
        return f"step {step} [{bar}] {share:4.0%} {seconds:.0f} s of {self._before[1]:.0f} s, {name}"

    def end(self) -> None:
        """The step has ended. Clears the line."""
        if self._begin is not None:
            self._before = (self._entered, self._clock() - self._begin)
        self._begin, self._entered = None, 0
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._is_shown = False
