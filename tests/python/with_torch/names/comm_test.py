"""sluice.comm: what its functions give to two ranks, and to a process alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from forked import run_two_ranks

import sluice
from sluice import comm

SCRIPT = Path(__file__).parent / "comm_script.py"


def test_two_ranks_have_what_each_function_promises(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path, DS_ACCELERATOR="cpu")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher, and no group before and after."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not comm.is_initialized()
    yield
    if comm.is_initialized():
        comm.destroy_process_group()


def test_a_process_alone_is_rank_0_of_1(alone: None) -> None:
    assert (comm.get_rank(), comm.get_world_size(), comm.get_local_rank()) == (0, 1, 0)
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        comm.get_world_group()
    with pytest.raises(AssertionError, match="dist_init_required"):
        comm.init_distributed(dist_init_required=False)
    comm.init_distributed(dist_init_required=True, auto_mpi_discovery=False, verbose=False)
    group = comm.get_world_group()
    comm.init_distributed()  # the group stays
    assert comm.get_world_group() is group
    value = torch.ones(2)
    comm.all_reduce(value)
    assert value.tolist() == [1, 1]
    assert comm.get_world_size(group) == 1


def test_arguments_that_mean_nothing_here_are_errors(alone: None) -> None:
    with pytest.raises(TypeError, match="backend_name"):
        comm.init_distributed(backend_name="gloo")
    with pytest.raises(ValueError, match="rank is 1 of 1"):
        comm.init_distributed(rank=1, world_size=1)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match='pass "gloo"'):
            comm.init_distributed(dist_backend="nccl", rank=0, world_size=2)
    with pytest.raises(TypeError, match="prof"):
        comm.all_gather_into_tensor(torch.zeros(1), torch.zeros(1), prof=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="NCCL is for GPUs")
def test_one_process_without_a_gpu_takes_gloo_for_nccl(alone: None, caplog: pytest.LogCaptureFixture) -> None:
    comm.init_distributed(dist_backend="nccl")
    assert comm.get_backend() == "gloo"
    assert "one process takes gloo" in caplog.text


@pytest.mark.parametrize("name", ["config", "constants", "utils", "reduce_op", "comms_logger"])
def test_names_that_are_another_thing_in_pytorch_are_not_there(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        getattr(comm, name)


def test_a_point_to_point_operation_is_a_send_or_a_receive(alone: None) -> None:
    sluice.init_distributed()
    with pytest.raises(ValueError, match="isend"):
        comm.P2POp(comm.all_reduce, torch.zeros(1), 0)
