"""An engine of several ranks may end behind a backward that no step() followed."""

from __future__ import annotations

from pathlib import Path

from forked import run_two_ranks

SCRIPT = Path(__file__).parent / "unfinished_step_script.py"


def test_states_are_closed_behind_the_last_reductions(tmp_path: Path) -> None:
    """They are under way where one rank is slower, and use the communicator that the ranks agree through."""
    (tmp_path / "drive").mkdir()
    run_two_ranks(SCRIPT, tmp_path)
