"""Where the program `sluice` of this package is."""

from __future__ import annotations

from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "sluice"
MISSING = f"there is no {PROGRAM}; install the package again: pip install ."
