"""The program `sluice`: replaces this process by it, so there is one process to signal and to wait for.

`sluice data` is Python's own, with its help. The help of the program gets its line.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

from ._program import MISSING, PROGRAM

_HELP = ("help", "-h", "--help")
_LINE_OF_DATA = """
command of the Python package:
  data      make token files of text"""


def main() -> int:
    """Runs the program with the arguments of this process. Returns for `sluice data` and helps, with the exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["data"]:
        return _data(arguments[1:])
    if arguments[:1] and arguments[0] in _HELP and arguments[1:2] == ["data"]:
        return _data([*arguments[2:], "--help"])
    if not PROGRAM.is_file():
        sys.exit(f"sluice: {MISSING}")
    if not arguments or (len(arguments) == 1 and arguments[0] in _HELP):
        return _help(arguments)
    if arguments[0] == "launch" and not os.environ.get("PYTHON_EXEC"):  # torchrun's variable, for the interpreter of the ranks
        os.environ["PYTHON_EXEC"] = sys.executable
    os.execv(PROGRAM, [_own_name(), *arguments])


def _own_name() -> str:
    """A name that starts this program again: the program prints lines that begin with it."""
    own = sys.argv[0]
    if own.endswith("__main__.py") or not os.access(own, os.X_OK):
        return str(PROGRAM)  # `python -m sluice`
    found = shutil.which("sluice")
    return "sluice" if found is not None and os.path.samefile(found, own) else own


def _data(arguments: list[str]) -> int:
    from ._data.command import main as data

    return data(arguments)


def _help(arguments: list[str]) -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `sluice --help | head` ends without a traceback
    code = subprocess.run(["sluice", *arguments], executable=PROGRAM, check=False).returncode
    if code != 0:
        return code if code > 0 else 128 - code
    print(_LINE_OF_DATA)
    return 0


if __name__ == "__main__":
    sys.exit(main())
