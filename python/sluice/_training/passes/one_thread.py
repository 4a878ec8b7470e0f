"""One pass at a time: the thread of the last pass, and the error for another one that comes into it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn

from .backwards import Backwards

_BACKWARDS = torch.autograd.backward.__code__, torch.autograd.grad.__code__


def is_called(frame: FrameType | None, modules: Collection[nn.Module], besides: int = 0) -> bool:
    """Whether this frame is inside a call of one of the modules. ``besides``: calls that do not count."""
    while frame is not None:
        if frame.f_code is nn.Module._wrapped_call_impl.__code__ and frame.f_locals["self"] in modules:
            if besides == 0:
                return True
            besides -= 1
        frame = frame.f_back
    return False


def _backwards_in(frame: FrameType | None) -> int:
    """How many backwards this frame is inside: one in another one, as of a checkpoint, counts too."""
    count = 0
    while frame is not None:
        count += frame.f_code in _BACKWARDS
        frame = frame.f_back
    return count


def _names() -> dict[int, str]:
    """The threads of the script by their number. PyTorch's own, which run parts of a backward, are none of them."""
    return {each.ident or 0: each.name for each in threading.enumerate() if not isinstance(each, threading._DummyThread)}


class OneThread:
    """The script's thread that had the last pass, a forward or a backward. Threads may take turns.

    A thread of PyTorch's that runs a part of a backward works for the thread that called the backward, and counts as that one.
    ``modules``: the model and its units.
    """

    def __init__(self, modules: Collection[nn.Module], backwards: Backwards) -> None:
        self._modules, self._backwards = modules, backwards
        self._ident = 0
        self._marked: list[str] = []  # passes that this thread has announced, in words
        self._task = -1, 0  # a backward of PyTorch's, and the thread that called it
        self._running = -1, 0  # as `_task`, of the pass in progress: a backward inside it has a task of its own
        # Who takes the pass from another thread holds the lock, and so does the other one while `_is_taking`, at which it looks
        # before `_ident`. If it has looked before, its call of a module is in its frames already.
        self._lock = threading.RLock()
        self._is_taking = False

    def claim(self, begins: str = "a forward begins") -> None:
        """A pass begins or goes on in this thread. Raises ValueError where another thread is inside one."""
        if not self._is_taking and self.is_mine():
            return
        with self._lock:
            if self.is_mine():
                return
            self._is_taking = True
            try:
                self.check(begins)
                self._ident = self._caller()
            finally:
                self._is_taking = False

    def claim_backward(self) -> bool:
        """A gradient comes: claims the pass, and notes that its backward runs. Returns whether it is the first of the backward."""
        with self._lock:
            self.claim("a backward begins")
            is_first = self._backwards.note_begun()
            if is_first:
                self._running = torch._C._current_graph_task_id(), self._caller()
            return is_first

    @contextlib.contextmanager
    def announced(self, what: str) -> Iterator[None]:
        """The pass inside is this thread's from its begin to its end. ``what``: the pass, in words."""
        with self._lock:
            self.claim(f"{what} begins")
            self._marked.append(what)
        try:
            yield
        finally:
            self._marked.remove(what)

    def check(self, begins: str) -> None:
        """Raises ValueError where another thread is inside a pass. ``begins``: what this thread does, in words."""
        other = self.other()
        if other:
            names = _names()
            raise ValueError(
                f"{begins} in the thread {names.get(self._caller(), threading.get_ident())}, and {other}: an engine has one pass at a "
                "time, also without gradients. Hold one threading.Lock around each pass, or make them in one thread"
            )

    def is_mine(self) -> bool:
        """Whether the last pass is this thread's, or that of the thread that it works for."""
        if self._ident == threading.get_ident():
            return True
        return torch._C._current_graph_task_id() != -1 and self._caller() == self._ident

    def other(self) -> str:
        """The pass that another thread is inside, in words; empty without one."""
        if self.is_mine():
            return ""
        frame: Any = sys._current_frames().get(self._ident)
        inside = self._marked[-1] if self._marked else ""
        if not inside and is_called(frame, self._modules):
            inside = "a forward"
        if not inside and self._backwards.is_on() and _backwards_in(frame):
            inside = "a backward"
        return f"the thread {_names().get(self._ident, self._ident)} is inside {inside}" if inside else ""

    def _caller(self) -> int:
        """The script's thread that this one is, or has called the backward that this one runs a part of."""
        ident, task = threading.get_ident(), torch._C._current_graph_task_id()
        if task == -1:
            return ident
        known, caller = self._running if self._running[0] == task else self._task
        if known != task:
            caller = self._found_caller(ident)
            self._task = task, caller
        return caller

    def _found_caller(self, ident: int) -> int:
        names = _names()
        if ident in names:
            return ident
        counts = {thread: _backwards_in(frame) for thread, frame in sys._current_frames().items()}
        callers = [thread for thread, count in counts.items() if count and thread in names]
        if len(callers) == 1:
            return callers[0]
        if sum(counts.values()) > len(callers):  # perhaps a backward inside that of the last pass
            return self._ident
        if self._ident in callers and not self._backwards.is_on():  # the first gradient of the last pass; others are of other models
            return self._ident
        others = [thread for thread in callers if thread != self._ident]
        return others[0] if len(others) == 1 else self._ident
