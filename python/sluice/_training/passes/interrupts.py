"""Signals at the end of a step: Python handlers run when it has ended, so that counters and schedule agree with the weights."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

# A fault comes again when its handler returns.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
_NUMBERS = sorted(signal.valid_signals() - _FAULTS)
_Handler = Callable[[int, Any], Any]


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Python handlers of signals that come inside run at the end, each once. From a second SIGINT on, its own runs at once.

    Handlers of C code are left alone.
    """
    if threading.current_thread() is not threading.main_thread():  # none runs here
        yield
        return
    handlers: dict[int, _Handler] = {number: found for number in _NUMBERS if callable(found := signal.getsignal(number))}
    came: dict[int, Any] = {}  # frames, in the order of the signals
    at_once: set[int] = set()

    def note(number: int, frame: Any) -> None:
        if number in came and number == signal.SIGINT:
            at_once.add(number)
            handlers[number](number, came.pop(number))
        if number in at_once:
            handlers[number](number, frame)
        else:
            came.setdefault(number, frame)

    with contextlib.ExitStack() as at_the_end:  # calls each, also where one raises; that error is the context of the next one
        at_the_end.callback(_call_those_of, came, handlers)
        for number, handler in handlers.items():
            at_the_end.callback(_put_back, number, handler, note)
        at_the_end.callback(at_once.update, _NUMBERS)
        for number in handlers:
            signal.signal(number, note)
        yield


def _put_back(number: int, handler: _Handler, note: _Handler) -> None:
    if signal.getsignal(number) is note:  # else the step has set another one
        signal.signal(number, handler)


def _call_those_of(came: dict[int, Any], handlers: dict[int, _Handler]) -> None:
    if came:
        number = next(iter(came))
        try:
            handlers[number](number, came.pop(number))
        finally:
            _call_those_of(came, handlers)
