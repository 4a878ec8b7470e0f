"""Lines of the part in C++ in `logging`. A thread hands them on, since no thread of the engine may wait for Python."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from typing import Any

from .. import ranks

log = logging.getLogger("sluice")

_LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)  # by the extension's number
_handed: tuple[int, Any, threading.Thread] | None = None  # the process, its lines, and the thread


def hand_on(extension: Any) -> None:
    """Lines of the extension go to the logger `sluice` from now on, on ranks other than 0 warnings and errors only."""
    global _handed
    if _handed is not None and _handed[0] == os.getpid():
        return
    lines = extension.LogLines()
    thread = threading.Thread(target=_hand_on, args=(lines,), name="sluice-log", daemon=True)
    _handed = os.getpid(), lines, thread
    thread.start()


def _hand_on(lines: Any) -> None:
    while taken := lines.take():
        for number, line in taken:
            level = _LEVELS[number]
            if level < logging.WARNING and ranks.rank() > 0:
                continue  # rank 0 has this line too
            try:
                log.log(level, "%s", line)
            except Exception:  # of a handler; the thread has no caller that could get it
                traceback.print_exc()
                sys.stderr.write(f"sluice: {line}\n")


def end() -> None:
    """At the end of the process: hands the last lines on. Later ones go to standard error."""
    if _handed is not None and _handed[0] == os.getpid():
        _, lines, thread = _handed
        lines.end()
        thread.join()
