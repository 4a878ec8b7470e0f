"""Ranks that torchrun starts again: its agent keeps the store in which they meet."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import forked
import pytest
import torch.distributed as dist
from forked import free_port, run_ranks

SCRIPT = Path(__file__).parent / "restarted_script.py"
MOST_SECONDS = 60

# Ends at once, as a rank that is killed: nothing of it is taken out of the store.
MEETING = """
import datetime, os, sluice
import torch, torch.distributed as dist
sluice.init_distributed(timeout=datetime.timedelta(seconds=20))
ranks = torch.tensor(float(os.environ["RANK"]))
dist.all_reduce(ranks)
print("sum of ranks", int(ranks), flush=True)
os._exit(0)
"""


# {} joins the ranks.
ENGINE = """
import os, sluice, torch, torch.distributed as dist
{}
config = {{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "AdamW"}}, "sluice": {{"device": "host"}}}}
engine, *_ = sluice.initialize(model=torch.nn.Linear(2, 2), config=config)
engine.destroy()
dist.destroy_process_group()
"""


def outputs(code: str, port: int, own: list[dict[str, str]], **variables: str) -> list[str]:
    """Of each of the ranks. ``own``: its variables."""
    common = {**os.environ, "WORLD_SIZE": str(len(own)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
    ranks = [forked.Process(["-c", code], {**common, "RANK": str(rank), **each}, merges_outputs=True) for rank, each in enumerate(own)]
    try:
        return [rank.communicate(MOST_SECONDS)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


# The agents of several hosts count each its own failures.
def test_ranks_meet_in_a_store_that_an_earlier_start_has_written_to() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=20), wait_for_workers=False)
    for restarts in ([0, 0, 0], [0, 1, 0], [1, 1, 2]):
        own = [{"TORCHELASTIC_RESTART_COUNT": str(count)} for count in restarts]
        assert outputs(MEETING, store.port, own, TORCHELASTIC_USE_AGENT_STORE="True") == 3 * ["sum of ranks 3\n"]


@pytest.mark.parametrize(
    ("join", "restarts", "warns"),
    [
        ("dist.init_process_group('gloo')", "2", True),
        ("dist.init_process_group('gloo')", "0", False),
        ("sluice.init_distributed()", "2", False),
        ("", "2", False),
    ],
)
def test_a_group_that_may_not_survive_a_restart_is_told(join: str, restarts: str, warns: bool) -> None:
    first, second = outputs(ENGINE.format(join), free_port(), [{}, {}], TORCHELASTIC_MAX_RESTARTS=restarts)
    assert first.count("\n") == int(warns), first  # no other line, as of an error
    assert first.count("call sluice.init_distributed()") == int(warns)
    assert first.count(f"--max-restarts {restarts}") == int(warns)
    assert second == ""


@pytest.mark.long
@pytest.mark.parametrize("meeting", ["at a port", "standalone"])
def test_ranks_that_torchrun_starts_again_resume(meeting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ["--standalone"] if meeting == "standalone" else ["--master-port", str(free_port())]
    launch = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "2"]
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPT.parent.parent}:{os.environ.get('PYTHONPATH', '')}")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SLUICE_RANK_TIMEOUT": "6"}
    folders = [tmp_path / name for name in ("again", "once")]
    for folder in folders:
        folder.mkdir()
    command = [*launch, *where, str(SCRIPT), str(folders[0])]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    ends = sorted(line for line in result.stdout.splitlines() if line.startswith("rank "))
    whole = run_ranks(2, SCRIPT, folders[1])
    for rank, (end, other) in enumerate(zip(ends, whole, strict=True)):
        assert end.startswith(f"rank {rank}, start 2: from step 4 to 6, ")
        assert end.split()[-1] == other.split()[-1]
