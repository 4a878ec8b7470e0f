"""Loops that are open. Each ends once: at close(), when nothing uses it any more, or when the script ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Any

from . import ranks
from .engine_module import engine_module

log = logging.getLogger("sluice")

_open: dict[Any, None] = {}  # loops of the extension, in the order in which every rank makes them


def add(loop: Any, user: object, *, has_ranks: bool, commits: bool) -> None:
    """Ends the loop when its only ``user`` is gone. ``commits``: its steps are kept on a drive.

    Ranks collect garbage at different moments, and a commit is a collective. So a loop of several ranks that commits stays
    until close() or the exit, and one that does not ends without waiting for its last updates.
    """
    _open[loop] = None
    if not (has_ranks and commits):
        weakref.finalize(user, _end_unwatched, loop, finishes=not has_ranks).atexit = False


def is_open(loop: Any) -> bool:
    return loop in _open


def end(loop: Any, finishes: bool = True) -> None:
    """Gives memory and files back. ``finishes``: after it has committed the last step."""
    _open.pop(loop, None)
    try:
        if finishes:
            loop.finish()
    finally:
        loop.close()


def _end_unwatched(loop: Any, finishes: bool = True) -> None:
    """As :func:`end`, where no caller is left to take an error: it is logged, and the script's exit code is not 0."""
    try:
        if is_open(loop):
            end(loop, finishes)
    except Exception:
        log.exception("the end of training failed")
        engine_module().fail_at_exit()


@atexit.register
def _end_all() -> None:
    """A script that ends has its last step committed, and no thread of a loop outlives Python."""
    for loop in list(_open):
        _end_unwatched(loop)
    ranks.end()


# A forked child has no thread of its parent's engines, so it ends none of them.
os.register_at_fork(after_in_child=_open.clear)
