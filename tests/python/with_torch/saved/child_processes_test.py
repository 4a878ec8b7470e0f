"""Engines of processes that multiprocessing forks: such a process ends without the functions of atexit."""

from __future__ import annotations

import os
from pathlib import Path

import forked
import pytest

SMALL_MODELS = Path(__file__).parent.parent
SCRIPT = """
import multiprocessing, os, sys
sys.path.insert(0, sys.argv[1])
import torch.multiprocessing
from pathlib import Path
kept = []

def train_steps(rank, steps, what):
    if rank is not None:
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
    from small_models import config, engine_of, make, train
    from sluice._training import open_loops
    engine = engine_of(make(blocks=1), config("nvme", Path(sys.argv[2])), resume=True)
    os.write(1, f"begins at step {engine.global_steps}\\n".encode())  # at once: two ranks write to one pipe
    train(engine, range(steps))
    kept.append(engine)
    if what == "no commit":
        open_loops._finish = lambda loop: 1 / 0
    if what == "error":
        raise ValueError("no data")

def run(start, steps, what=None):
    process = multiprocessing.get_context(start).Process(target=train_steps, args=(None, steps, what))
    process.start()
    process.join()
    print("exit code", process.exitcode, flush=True)

"""


def outputs_of(code: str, folder: Path, **variables: str) -> tuple[list[str], str]:
    """Lines of a script's output, and its errors."""
    process = forked.Process(["-c", SCRIPT + code, SMALL_MODELS, folder], {**os.environ, **variables})
    try:
        output, errors = process.communicate(120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output.splitlines(), errors


def test_a_forked_process_commits_its_last_step_at_its_end(tmp_path: Path) -> None:
    lines, errors = outputs_of("run('fork', 3); run('fork', 2, 'error'); run('fork', 0, 'no commit')", tmp_path)
    begins_and_ends = ["begins at step 0", "exit code 0", "begins at step 3", "exit code 1", "begins at step 5", "exit code 1"]
    assert lines == begins_and_ends, errors
    assert errors.index("ValueError: no data") < errors.index("the end of training failed\nTraceback")
    assert errors.count("ZeroDivisionError") == 1


def test_a_forked_child_that_lives_does_not_hold_the_files_of_monitors(tmp_path: Path) -> None:
    code = """
from small_models import config, engine_of, make, train
folder = sys.argv[2]
engine = engine_of(make(blocks=1), config(csv_monitor={"enabled": True, "output_path": folder, "job_name": "job"}))
train(engine, range(2))
engine.save_checkpoint(folder)
read_end, write_end = os.pipe()
if os.fork() == 0:  # as a worker that loads data
    os.close(write_end)
    os.read(read_end, 1)
    os._exit(0)
engine.load_checkpoint(folder)
train(engine, range(2))
engine.destroy()
os.close(write_end)
os.wait()
"""
    lines, errors = outputs_of(code, tmp_path)
    assert not lines and "by another run" not in errors
    (losses,) = (tmp_path / "job").glob("*train_loss.csv")
    assert [row.split(",")[0] for row in losses.read_text().splitlines()[1:]] == ["2", "4", "6", "8"]


def test_a_forked_child_has_none_of_the_memory_for_states(tmp_path: Path) -> None:
    code = """
from small_models import config, engine_of, make, train

def resident_bytes():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024

engine = engine_of(make(blocks=32), config("cpu"))
train(engine, range(2))
before = resident_bytes()
read_end, write_end = os.pipe()
if os.fork() == 0:  # as a worker that loads data
    os.write(write_end, str(before - resident_bytes()).encode())
    os._exit(0)
os.wait()
print(int(os.read(read_end, 100)), engine.report()["plan"]["planned_bytes"]["host"])
train(engine, range(2, 4))
"""
    lines, errors = outputs_of(code, tmp_path)
    without, planned = map(int, lines[0].split())
    assert without > 0.9 * planned > 2**24, errors


def two_ranks() -> dict[str, str]:
    return {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(forked.free_port())}


@pytest.mark.long
def test_a_spawned_process_ends_its_engines_once(tmp_path: Path) -> None:
    code = "if __name__ == '__main__': run('spawn', 2); run('fork', 0)"
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + code)
    process = forked.Process([script, SMALL_MODELS, tmp_path / "drive"], os.environ)
    (tmp_path / "drive").mkdir()
    output, errors = process.communicate(120)
    assert output.splitlines() == ["begins at step 0", "exit code 0", "begins at step 2", "exit code 0"], errors


def test_forked_ranks_commit_their_last_step_at_their_end(tmp_path: Path) -> None:
    code = "for steps in (2, 0): torch.multiprocessing.start_processes(train_steps, (steps, None), nprocs=2, start_method='fork')"
    lines, errors = outputs_of(code, tmp_path, **two_ranks())
    assert lines == 2 * ["begins at step 0"] + 2 * ["begins at step 2"], errors


def test_a_forked_rank_that_fails_waits_for_no_commit(tmp_path: Path) -> None:
    code = """
def one_fails(rank):
    train_steps(rank, 1, "error" if rank else None)

try:
    torch.multiprocessing.start_processes(one_fails, nprocs=2, start_method="fork")
except torch.multiprocessing.ProcessRaisedException as error:
    print("failed", "ValueError: no data" in str(error), flush=True)
torch.multiprocessing.start_processes(train_steps, (0, None), nprocs=2, start_method="fork")
"""
    lines, errors = outputs_of(code, tmp_path, **two_ranks())
    assert lines == [*2 * ["begins at step 0"], "failed True", *2 * ["begins at step 0"]], errors  # a commit is of all ranks
