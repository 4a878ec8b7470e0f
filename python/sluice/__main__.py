"""The program `sluice`: replaces this process by it, so there is one process to signal and to wait for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

PROGRAM = Path(__file__).resolve().parent / "bin" / "sluice"


def main() -> NoReturn:
    """Runs the program with the arguments of this process. Does not return."""
    if not PROGRAM.is_file():
        sys.exit(f"sluice: there is no {PROGRAM}; install the package again: pip install .")
    os.execv(PROGRAM, ["sluice", *sys.argv[1:]])


if __name__ == "__main__":
    main()
