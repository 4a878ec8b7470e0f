"""Processes with a limit, each with a group of its own, so that all that it started ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
from io import FileIO


def run_within(line: list[str], limit: float, log: FileIO, **more) -> tuple[int | None, str]:
    """Its exit status, None at its limit, and all that it said, which `log` gets as it says it."""
    begin = log.tell()
    process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True, **more)
    status = status_within(process, limit)
    log.seek(begin)
    return status, log.read().decode(errors="replace")


def status_within(process: subprocess.Popen, limit: float) -> int | None:
    """Exit status; None at its limit. Its group has ended, also when this program is told to end."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_group(process)


def end_group(process: subprocess.Popen) -> None:
    """Ends a process, if it still runs, and its group, after some time to clean up."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
