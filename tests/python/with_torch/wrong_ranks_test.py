"""Ranks that stop, die, end early or do something else: the others end in time, and name the rank and what it did."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import forked
import pytest
from forked import free_port

SCRIPT = Path(__file__).parent / "wrong_rank_script.py"
LIMIT = 4  # seconds that a rank may stay without an answer
MOST_SECONDS = 60


def start(rank: int, port: int, *command: str, **variables: str) -> forked.Process:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SLUICE_RANK_TIMEOUT": str(LIMIT),
        **variables,
    }
    return forked.Process(command, environment, merges_outputs=True)


def run(what: str, folder: Path = Path(), shown: int = 0) -> tuple[forked.Process, str, float]:
    """Rank ``shown`` of two, its output, and the seconds that it took. Rank 1 does what is asked."""
    port, begin = free_port(), time.monotonic()
    ranks = [start(rank, port, str(SCRIPT), what, str(folder)) for rank in range(2)]
    try:
        output, _ = ranks[shown].communicate(timeout=MOST_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
    return ranks[shown], output, time.monotonic() - begin


@pytest.mark.parametrize("what", ["half", "drop"])
def test_a_script_may_end_between_backward_and_step(what: str) -> None:
    rank, output, _ = run(what)
    assert rank.returncode == 0, output


def test_a_rank_waits_at_its_exit_for_the_commit_of_another(tmp_path: Path) -> None:
    rank, output, _ = run("late", tmp_path)
    assert rank.returncode == 0, output
    assert "has not answered" not in output


def test_ranks_that_wait_for_each_other_end() -> None:
    rank, output, seconds = run("boundary")
    assert rank.returncode == 1, output
    lines = [line for line in output.splitlines() if line.startswith("sluice: ")]
    assert lines[0].startswith("sluice: the ranks do not make the same calls, and wait for each other. Every rank makes the same calls, ")
    assert lines[1].startswith("sluice: rank 0 waited for it: it was in step 3, forward of ")
    assert lines[2].endswith(" answers: it was in step 3, its end")
    assert seconds < MOST_SECONDS


def test_a_rank_that_fails_does_not_commit_while_another_reads(tmp_path: Path) -> None:
    rank, output, seconds = run("reads", tmp_path)
    assert rank.returncode == 1, output
    assert "rank 1 (" in output, output
    assert seconds < MOST_SECONDS


def test_ranks_of_which_one_saves_end(tmp_path: Path) -> None:
    rank, output, seconds = run("save", tmp_path)
    assert rank.returncode == 1, output
    assert "the ranks do not make the same calls" in output
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize(
    ("what", "error", "place"),
    [
        ("saves apart", "StorageError", "checkpoints/global_step2 of {rank} is not that of rank 0 on host"),
        ("starts apart", "ValueError", "checkpoints is not there for {rank}, and is there for rank 0 on host"),
    ],
)
def test_a_directory_of_checkpoints_that_is_not_one_is_named(tmp_path: Path, what: str, error: str, place: str) -> None:
    for folder in ("0", "1"):
        (tmp_path / folder).mkdir()
    rank, output, seconds = run(what, tmp_path)
    assert rank.returncode == 1, output
    last = output.splitlines()[-1]
    named = f"{tmp_path}/1/" + place.format(rank=f"rank 1 on host {socket.gethostname()}")
    assert error in last and named in last and "all ranks need one directory" in last, output
    assert seconds < MOST_SECONDS


def test_a_rank_that_stands_still_is_named() -> None:
    rank, output, _ = run("SIGSTOP")
    assert rank.returncode == 1, output
    lines = [line for line in output.splitlines() if line.startswith("sluice: ")]
    assert lines[0].startswith("sluice: rank 0 waited for it: it was in step 3, ")
    assert " has not answered for " in lines[1]
    assert lines[1].startswith(f"sluice: rank 1 (host {socket.gethostname()}, process ")
    assert lines[1].endswith(" s: its last answer was from step 2, its end")


@pytest.mark.parametrize("what", ["SIGKILL", "error"])
def test_a_rank_that_died_is_named(what: str) -> None:
    rank, output, _ = run(what)
    assert rank.returncode == 1, output
    assert "rank 1 (host " in output
    assert "all steps" not in output


def test_an_exception_in_gathered_parameters_is_shown_before_their_end_waits() -> None:
    rank, output, _ = run("gathered", shown=1)
    assert rank.returncode == 1, output
    said = output.index("an exception ends GatheredParameters, whose end waits for the other ranks\nTraceback ")
    assert said < output.index("\nValueError: no data\n"), output


def test_a_rank_that_ended_early_is_named() -> None:
    rank, output, _ = run("end")
    assert rank.returncode == 1, output
    assert "has ended its training" in output
    assert "rank 1 (host " in output


def test_a_rank_that_skips_a_unit_is_named() -> None:
    rank, output, _ = run("skip")
    assert rank.returncode == 1, output
    assert "the ranks do not make the same calls: rank 0 is in step 3, " in output
    assert "rank 1 is in step 3, " in output


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("model", "parameter blocks.3.down.bias is none on rank 0 and [64], float32, trained on rank 1"),
        ("rate", "optimizer.params.lr is 0.001 on rank 0 and 0.5 on rank 1"),
        ("type", "optimizer.type is AdamW on rank 0 and Adam on rank 1"),
        ("scale", "fp16.initial_scale_power is 8 on rank 0 and 12 on rank 1"),
        ("prescale", "prescale_gradients is false on rank 0 and true on rank 1"),
        ("tier", "zero_optimization.offload_optimizer.device is cpu on rank 0 and none on rank 1"),
        ("groups", "parameter group 1 is {'lr': 0.001, 'weight_decay': 0.0} on rank 0 and {'lr': 0.002, 'weight_decay': 0.0} on rank 1"),
        ("members", "parameter norm.bias is [64], float32, trained, in group 0 on rank 0 and [64], float32, trained, in group 1 on rank 1"),
    ],
)
def test_ranks_that_train_different_things_are_named(what: str, named: str) -> None:
    rank, output, _ = run(what)
    assert rank.returncode == 1, output
    assert f"ValueError: the ranks train different things: {named}" in output


def test_ranks_that_step_with_different_values_are_named() -> None:
    rank, output, _ = run("values")
    assert rank.returncode == 1, output
    assert "the ranks step with different values: lr of parameter group 0 is 0.001 on rank 0 and 0.25 on rank 1" in output


JOIN = "import datetime, sluice; sluice.init_distributed(timeout=datetime.timedelta(seconds=1))"


def test_variables_that_are_missing_are_named() -> None:
    code = "import os; del os.environ['MASTER_ADDR'], os.environ['MASTER_PORT']\n"
    output, _ = start(0, free_port(), "-c", code + JOIN).communicate(timeout=MOST_SECONDS)
    message = "ValueError: WORLD_SIZE is 2, and MASTER_ADDR and MASTER_PORT are not set: start the ranks"
    assert output.splitlines()[-1].startswith(message)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "2"}, "ValueError: RANK=2 with WORLD_SIZE=2: ranks are numbered from 0 to 1"),
        ({"RANK": "x"}, "ValueError: RANK=x: a launcher sets it to a number"),
        ({"MASTER_PORT": "port"}, "ValueError: MASTER_PORT=port: a launcher sets it to a number"),
        ({"RANK": "1"}, "ConnectionError: rank 1 of 2 did not meet the others at 127.0.0.1:"),
        ({"MASTER_ADDR": "no.such.host.invalid", "RANK": "1"}, "ConnectionError: rank 1 of 2 did not meet the others at no.such.host"),
        ({"RANK": "0"}, "ConnectionError: rank 0 of 2 did not meet the others at 127.0.0.1:"),
    ],
)
def test_an_environment_that_cannot_be_is_one_line(variables: dict[str, str], message: str) -> None:
    process = start(0, free_port(), "-c", JOIN, **variables)
    output, _ = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 1
    assert output.splitlines()[-1].startswith(message)


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        process = start(0, port, "-c", JOIN)
        output, _ = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 1
    end = output.splitlines()[-1]
    where = f"127.0.0.1:{port}, since port {port} is in use: "
    assert end.startswith(f"ConnectionError: rank 0 of 2 cannot be the meeting place at {where}")
    assert "set another MASTER_PORT on every rank" in end
