"""One pass at a time: the thread of the forward in progress, and the error for another one that comes into it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
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


def _is_in_backward(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _BACKWARDS:
            return True
        frame = frame.f_back
    return False


class OneThread:
    """The thread that had the last forward. Threads may take turns. A backward may have threads of PyTorch's.

    ``modules``: the model and its units.
    """

    def __init__(self, modules: Collection[nn.Module], backwards: Backwards) -> None:
        self._modules, self._backwards = modules, backwards
        self._ident = 0
        self._lock = threading.Lock()

    def claim(self) -> None:
        """A forward begins in this thread. Raises ValueError where another thread is inside a pass."""
        if self.is_mine():
            return
        with self._lock:
            other = self.other()
            if other:
                raise ValueError(
                    f"a forward begins in the thread {threading.current_thread().name}, and {other}: an engine has one pass at a "
                    "time, also without gradients. Hold one threading.Lock around each pass, or make them in one thread"
                )
            self._ident = threading.get_ident()

    def is_mine(self) -> bool:
        """Whether the last forward is this thread's, or this thread is in a backward."""
        return self._ident == threading.get_ident() or torch._C._current_graph_task_id() != -1

    def other(self) -> str:
        """The pass that another thread is inside, in words; empty without one."""
        if self.is_mine():
            return ""
        frame: Any = sys._current_frames().get(self._ident)
        name = next((each.name for each in threading.enumerate() if each.ident == self._ident), str(self._ident))
        if is_called(frame, self._modules):
            return f"the thread {name} is inside one"
        if self._backwards.is_running and _is_in_backward(frame):
            return f"the thread {name} is inside a backward"
        return ""
