"""One of two ranks of comm_test.py: every function of sluice.comm that moves data, with what each rank has afterwards.

Arguments: the rank, and a folder for the ranks to meet in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

import sluice
from sluice import comm
from sluice.accelerator import get_accelerator
from sluice.utils import groups

RANK, PLACE = int(sys.argv[1]), sys.argv[2]
OTHER = 1 - RANK
HERE = [1.0, 2.0] if RANK == 0 else [10.0, 20.0]
BOTH = [1.0, 2.0, 10.0, 20.0]


def mine() -> torch.Tensor:
    return torch.tensor(HERE)


def pair() -> list[torch.Tensor]:
    return [torch.zeros(2), torch.zeros(2)]


def listed(tensors: list[torch.Tensor]) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


def filled(out: Any, call: Callable[[Any], Any]) -> Any:
    """What ``call`` leaves in ``out``; it waits for a request."""
    request = call(out)
    if request is not None:
        request.wait()
    return listed(out) if isinstance(out, list) and isinstance(out[0], torch.Tensor) else getattr(out, "tolist", lambda: out)()


def error_of(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except RuntimeError as error:
        return str(error)


def point_to_point() -> list[Any]:
    got = [torch.zeros(2) for _ in range(3)]
    if RANK == 0:
        comm.send(mine(), 1)
        comm.recv(got[0], src=1)
    else:
        comm.recv(got[0], src=0)
        comm.send(mine(), dst=0)
    requests = [comm.isend(mine(), OTHER, tag=3), comm.irecv(got[1], src=OTHER, tag=3)]
    requests += comm.batch_isend_irecv([comm.P2POp(comm.isend, mine(), OTHER), comm.P2POp(comm.irecv, got[2], peer=OTHER)])
    for request in requests:
        request.wait()
    return listed(got)


def by_name() -> dict[str, tuple[Any, Any]]:
    """What a function gives here, and what it has to."""
    total = [11.0, 22.0]
    other = BOTH[2:] if RANK == 0 else BOTH[:2]
    objects: list[Any] = [None, None]
    one = [{"rank": RANK}]
    return {
        "all_reduce": (filled(mine(), comm.all_reduce), total),
        "all_reduce, max": (filled(mine(), lambda t: comm.all_reduce(t, op=comm.ReduceOp.MAX)), [10.0, 20.0]),
        "all_reduce, later": (filled(mine(), lambda t: comm.all_reduce(t, comm.ReduceOp.PRODUCT, async_op=True)), [10.0, 40.0]),
        "all_reduce_coalesced": (filled([mine(), mine() * 2], comm.all_reduce_coalesced), [total, [22.0, 44.0]]),
        "all_gather": (filled(pair(), lambda t: comm.all_gather(t, mine())), [BOTH[:2], BOTH[2:]]),
        "all_gather_into_tensor": (filled(torch.zeros(4), lambda t: comm.all_gather_into_tensor(t, tensor=mine())), BOTH),
        "all_gather_coalesced": (
            filled([torch.zeros(4), torch.zeros(2)], lambda t: comm.all_gather_coalesced(t, [mine(), mine()[:1]])),
            [BOTH, BOTH[::2]],
        ),
        "all_gather_coalesced, later": (
            filled([torch.zeros(4)], lambda t: comm.all_gather_coalesced(t, [mine()], async_op=True)),
            [BOTH],
        ),
        "all_gather_object": (filled(objects, lambda o: comm.all_gather_object(o, RANK)), [0, 1]),
        "all_to_all_single": (
            filled(torch.zeros(2), lambda t: comm.all_to_all_single(t, tensor=mine())),
            [BOTH[RANK], BOTH[2 + RANK]],
        ),
        "all_to_all": (
            error_of(lambda: comm.all_to_all(pair(), pair())),
            "None" if torch.__version__.startswith(("2.13.", "2.15.")) else "Backend gloo does not support alltoall",
        ),
        "reduce": (filled(mine(), lambda t: comm.reduce(t, 1))[: 2 * RANK], total[: 2 * RANK]),  # rank 0's is left open
        "reduce_scatter": (filled(torch.zeros(1), lambda t: comm.reduce_scatter(t, list(mine().chunk(2)))), [total[RANK]]),
        "reduce_scatter_tensor": (filled(torch.zeros(1), lambda t: comm.reduce_scatter_tensor(t, tensor=mine())), [total[RANK]]),
        "broadcast": (filled(mine(), lambda t: comm.broadcast(t, src=1)), BOTH[2:]),
        "broadcast_object_list": (filled(one, lambda o: comm.broadcast_object_list(o, src=1)), [{"rank": 1}]),
        "gather": (
            filled(pair(), lambda t: comm.gather(mine(), t if RANK == 1 else None, dst=1)),
            [BOTH[:2], BOTH[2:]] if RANK == 1 else [[0.0, 0.0]] * 2,
        ),
        "scatter": (filled(torch.zeros(2), lambda t: comm.scatter(t, pair() if RANK == 1 else None, src=1)), [0.0, 0.0]),
        "send, recv, isend, irecv, batch_isend_irecv": (point_to_point(), [other] * 3),
    }


def check_groups() -> None:
    assert comm.is_initialized()
    assert (comm.get_rank(), comm.get_world_size(), comm.get_local_rank()) == (RANK, 2, RANK)
    whole, alone = comm.get_world_group(), comm.new_group([1])
    assert isinstance(whole, comm.ProcessGroup)
    assert comm.get_global_rank(whole, 1) == 1
    if RANK == 1:
        assert comm.get_global_rank(alone, 0) == 1
        value = mine()
        comm.all_reduce(value, group=alone)
        assert value.tolist() == HERE
    assert (comm.get_world_size(alone), comm.get_rank(alone)) == ((1, 0) if RANK == 1 else (-1, -1))
    assert comm.monitored_barrier(timeout=timedelta(seconds=60)) is None
    assert (groups.get_data_parallel_world_size(), groups.get_data_parallel_rank()) == (2, RANK)
    assert groups.get_data_parallel_group() is whole
    assert (groups.get_model_parallel_world_size(), groups.get_model_parallel_rank()) == (1, 0)


def main() -> None:
    assert comm.is_available()
    sluice.init_distributed("gloo", timeout=timedelta(seconds=60), init_method=f"file://{PLACE}/meet", rank=RANK, world_size=2)
    check_groups()
    wrong = {name: (got, expected) for name, (got, expected) in by_name().items() if got != expected}
    assert not wrong, wrong
    get_accelerator().set_device(RANK)  # scripts call it with LOCAL_RANK on a CPU, too
    assert get_accelerator().current_device() == RANK
    comm.barrier()
    comm.destroy_process_group()
    assert not comm.is_initialized()
    print("done")


main()
