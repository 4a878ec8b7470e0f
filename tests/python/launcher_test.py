"""Ranks that mpirun or srun started find torchrun's variables."""

from __future__ import annotations

import os

import pytest
from sluice._environment.launcher import local_rank, take_variables

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OPEN_MPI = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in NAMES or name.startswith(("OMPI_", "PMI", "SLURM_")):
            monkeypatch.delenv(name)
    for name in NAMES:  # what a test sets is removed at its end
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def start_by_mpirun(monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    for name, value in {**OPEN_MPI, **changed}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)


def variables() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES]


def test_a_process_alone_gets_none() -> None:
    take_variables()
    assert variables() == [None] * len(NAMES)


def test_ranks_of_mpirun_get_those_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    start_by_mpirun(monkeypatch)
    take_variables()
    assert variables() == ["1", "2", "1", "2", "127.0.0.1", "29500"]


def test_ranks_of_srun_meet_on_the_first_host(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"PROCID": "3", "NTASKS": "4", "LOCALID": "1", "TASKS_PER_NODE": "2(x2)", "STEP_ID": "0"}
    for name, value in {**job, "NODEID": "1", "JOB_NODELIST": "node[07-08]"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    take_variables()
    assert variables() == ["3", "4", "1", "2", "node07", "29500"]


def test_variables_that_are_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    start_by_mpirun(monkeypatch)
    monkeypatch.setenv("MASTER_PORT", "1234")
    take_variables()
    assert variables() == ["1", "2", "1", "2", "127.0.0.1", "1234"]


def test_torchruns_own_variables_count_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    start_by_mpirun(monkeypatch)
    monkeypatch.setenv("WORLD_SIZE", "1")
    take_variables()
    assert os.environ["WORLD_SIZE"] == "1"
    assert "RANK" not in os.environ


def test_several_hosts_need_the_address_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    start_by_mpirun(monkeypatch, SIZE="4")
    with pytest.raises(ValueError, match="Open MPI started 4 ranks on several hosts, and MASTER_ADDR is not set"):
        take_variables()


def test_a_rank_that_cannot_be_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    start_by_mpirun(monkeypatch, RANK="2")
    with pytest.raises(ValueError, match="OMPI_COMM_WORLD_RANK=2 with OMPI_COMM_WORLD_SIZE=2: ranks are numbered from 0 to 1"):
        take_variables()


def test_a_rank_on_its_host_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_rank() == 0
    start_by_mpirun(monkeypatch)
    assert local_rank() == 1
    monkeypatch.setenv("LOCAL_RANK", "x")
    with pytest.raises(ValueError, match="LOCAL_RANK=x: a launcher sets it to a number"):
        local_rank()
