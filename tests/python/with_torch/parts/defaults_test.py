"""Ranks work where the script has another default device and data type than PyTorch's."""

from __future__ import annotations

from pathlib import Path

from forked import run_two_ranks

SCRIPT = Path(__file__).parent / "defaults_script.py"


def test_defaults_of_the_script_are_not_those_of_the_ranks(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path, "bfloat16")
