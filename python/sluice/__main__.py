"""The program `sluice`: replaces this process by it, so there is one process to signal and to wait for.

`sluice data` is Python's own.
"""

from __future__ import annotations

import os
import sys

from ._program import MISSING, PROGRAM


def main() -> int:
    """Runs the program with the arguments of this process. Returns for `sluice data` only, with its exit code."""
    if sys.argv[1:2] == ["data"]:
        from ._data.command import main as data

        return data(sys.argv[2:])
    if not PROGRAM.is_file():
        sys.exit(f"sluice: {MISSING}")
    os.execv(PROGRAM, ["sluice", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
