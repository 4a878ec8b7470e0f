"""Ranks that wait for one in code of its script say so and go on; ranks that make other calls hear how it is done."""

from __future__ import annotations

import os
from pathlib import Path

import forked
import pytest
import small_models

SCRIPT = Path(__file__).parent / "waiting_ranks_script.py"
LIMIT = 3  # seconds that a rank may stay without an answer
RULE = "Every rank makes the same calls, at every ZeRO stage: evaluation, GatheredParameters, module_state_dict(), "


def run(what: str, place: Path) -> list[tuple[int, str]]:
    """Exit code and output of each rank."""
    here = f"{Path(small_models.__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", "SLUICE_RANK_TIMEOUT": str(LIMIT)}
    ranks = [forked.Process([SCRIPT, rank, place, what], environment, merges_outputs=True) for rank in range(2)]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.mark.parametrize(("what", "waits_in"), [("evaluation", "step 2, forward of "), ("engine", "the start of an engine or a plan, ")])
def test_a_rank_in_the_code_of_its_script_is_named_and_waited_for(what: str, waits_in: str, tmp_path: Path) -> None:
    (code, output), (other_code, other_output) = run(what, tmp_path)
    assert (code, other_code, other_output) == (0, 0, "done\n"), output + other_output
    *lines, last = output.splitlines()
    assert last == "done"
    assert len(lines) in (1, 2), output  # the second at twice the time
    assert lines[0].startswith("rank 0 has waited ") and f" s in {waits_in}" in lines[0]
    assert "and goes on waiting: rank 1 (host " in lines[0] and " s: it was in step 1, its end. " + RULE in lines[0]


def test_weights_read_on_one_rank_are_an_error_with_the_way_out(tmp_path: Path) -> None:
    for code, output in run("weights", tmp_path):
        assert code == 1
        assert "the ranks do not make the same calls: rank 0 is in step 2, parameters (all_gather of the weights of unit embedding" in output
        assert f" elements). {RULE}" in output


def test_gradients_that_one_rank_has_dropped_are_an_error(tmp_path: Path) -> None:
    """Before: the shard of the rank that dropped them had one micro-batch, and the others two."""
    for code, output in run("dropping", tmp_path):
        assert code == 1
        assert "all_reduce of norm and loss, micro-batches: 2" in output
        assert "all_reduce of norm and loss, micro-batches: 1" in output
        assert "an exception in a pass or zero_grad() on one rank" in output


def test_an_operation_at_the_end_of_one_ranks_forward_is_named(tmp_path: Path) -> None:
    """The ranks then begin backward with different units, and gather those of the next step in different orders."""
    for code, output in run("scaled", tmp_path):
        assert code == 1
        assert "the ranks do not make the same calls: rank 0 is in step 1, backward of " in output
        assert "an operation without parameters at the end of the model's forward on one rank, in this step or the one before" in output


def test_a_rank_that_fails_before_the_comparison_is_named(tmp_path: Path) -> None:
    (code, output), (other_code, other_output) = run("failing", tmp_path)
    assert code == other_code == 1
    assert "1 problem in config" in other_output
    assert "RuntimeError: rank 1 (host " in output, output
    assert "has ended its training: it was in the start of an engine or a plan (" in output
