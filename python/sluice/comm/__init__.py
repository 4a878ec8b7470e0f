"""DeepSpeed's ``comm``: functions of ``torch.distributed``.

``comm.NAME`` is ``torch.distributed.NAME`` where it is not below. Modules of ``torch.distributed`` are left out: by the same
names DeepSpeed has others.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from .._environment.launcher import local_rank
from .._refusals import missing
from .._training import calls, ranks

log = logging.getLogger("sluice")

__all__ = [
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_to_all_single",
    "configure",
    "get_global_rank",
    "get_local_rank",
    "get_rank",
    "get_world_group",
    "get_world_size",
    "init_distributed",
    "is_initialized",
    "log_summary",
    "reduce_scatter_tensor",
]


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = 29500,
    verbose: bool = True,
    timeout: timedelta | None = None,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Makes the default group of ``torch.distributed``, where there is none, from the ranks that a launcher (torchrun, mpirun, srun) started.

    One process alone opens no port. ``dist_backend``: None or "gloo" for tensors in CPU memory; other names of torch's. "nccl"
    without a GPU is "gloo" for one process, with a warning.
    ``timeout``, ``init_method``, ``rank``, ``world_size``: those of ``torch.distributed.init_process_group``; without them
    the environment's. Variables of mpirun and srun are always read (``auto_mpi_discovery``), and MPI itself is not asked;
    ``distributed_port`` is taken from ``MASTER_PORT``, or 29500; ``verbose`` and ``config`` are about DeepSpeed's log.

    Raises AssertionError where ``dist_init_required`` is False and there is no group, ValueError for a rank out of range, an
    environment that cannot be, or "nccl" over several ranks without a GPU, ConnectionError when the ranks have not met within ``timeout``, or without it a minute.
    """
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise AssertionError("dist_init_required is False, and there is no default group: make it before, or pass True")
    size = world_size if world_size > 0 else ranks.world_size()
    if rank >= size:
        raise ValueError(f"rank is {rank} of {size} ranks: below that, or -1 for the environment's")
    backend = dist_backend or "gloo"
    if backend == "nccl" and not torch.cuda.is_available():
        why = 'dist_backend is "nccl", which is for GPUs, and PyTorch has none here'
        if size > 1:
            raise ValueError(f'{why}: pass "gloo", or leave it out')
        log.warning("%s: one process takes gloo", why)
        backend = "gloo"
    if init_method is not None or (size > 1 and (rank >= 0 or world_size > 0)):
        dist.init_process_group(backend, init_method=init_method, timeout=timeout, rank=rank, world_size=world_size)
    elif size > 1:
        ranks.join(backend, timeout)
    else:
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), timeout=timeout, rank=0, world_size=1)


def is_initialized() -> bool:
    """Whether there is a default group."""
    return dist.is_available() and dist.is_initialized()


def get_rank(group: Any = None) -> int:
    """The rank of this process; 0 before :func:`init_distributed`."""
    return dist.get_rank(group) if is_initialized() else 0


def get_world_size(group: Any = None) -> int:
    """Ranks that train; 1 before :func:`init_distributed`."""
    return dist.get_world_size(group) if is_initialized() else 1


def get_local_rank() -> int:
    """``LOCAL_RANK`` of the environment, or 0."""
    return local_rank()


def get_world_group() -> Any:
    """The default group. Raises ValueError before :func:`init_distributed`."""
    return dist.group.WORLD if is_initialized() else dist.distributed_c10d._get_default_group()


def get_global_rank(group: Any = None, group_rank: int = 0) -> int:
    """The rank in the default group of a rank of ``group``; None: the default group."""
    return dist.get_global_rank(get_world_group() if group is None else group, group_rank)


def configure(
    deepspeed_config: Any = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Sequence[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Switches the log of calls that :func:`log_summary` shows, as the section ``comms_logger`` does.

    ``deepspeed_config``: a dict with that section; the other arguments go over it. Calls that Sluice's engine makes are
    logged, from now on; those that the script makes itself are not.
    """
    if deepspeed_config is not None:
        calls.calls.configure(deepspeed_config.get("comms_logger", {}))
    asked = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops, "verbose": verbose, "debug": debug}
    calls.calls.configure(asked)


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """Prints, on rank 0, the logged calls by operation and size: count, latencies, algorithm and bus bandwidth.

    All ranks call it. ``show_straggler``: also the part of the latencies that is waiting for slower ranks.
    ``return_dict``: returns the numbers in DeepSpeed's names, of this rank on every rank.
    """
    return calls.log_summary(show_straggler, return_dict)


# PyTorch has another name for an argument of these.


def all_gather_into_tensor(output_tensor: torch.Tensor, tensor: torch.Tensor, group: Any = None, async_op: bool = False) -> Any:
    """``torch.distributed.all_gather_into_tensor``."""
    return dist.all_gather_into_tensor(output_tensor, tensor, group=group, async_op=async_op)


def reduce_scatter_tensor(
    output_tensor: torch.Tensor, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """``torch.distributed.reduce_scatter_tensor``."""
    return dist.reduce_scatter_tensor(output_tensor, tensor, op=op, group=group, async_op=async_op)


def all_to_all_single(
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """``torch.distributed.all_to_all_single``."""
    return dist.all_to_all_single(output, tensor, output_split_sizes, input_split_sizes, group=group, async_op=async_op)


class _AllOf:
    """Several requests as one."""

    def __init__(self, requests: Sequence[Any]) -> None:
        self._requests = requests

    def wait(self) -> None:
        for request in self._requests:
            request.wait()


def all_gather_coalesced(
    output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], group: Any = None, async_op: bool = False
) -> Any:
    """:func:`all_gather_into_tensor` of each pair. ``async_op``: returns at once an object whose wait() waits for all.

    ``torch.distributed.all_gather_coalesced`` is another function: it takes a list of outputs for each rank.
    """
    if not output_tensors or len(output_tensors) != len(input_tensors):
        raise ValueError(f"{len(output_tensors)} outputs for {len(input_tensors)} inputs: as many of each, and one at least")
    request = _AllOf([all_gather_into_tensor(*pair, group=group, async_op=True) for pair in zip(output_tensors, input_tensors)])
    return request if async_op else request.wait()


def _is_torchs(name: str) -> bool:
    """Whether ``torch.distributed.NAME`` is what DeepSpeed has by the name: no module, and not the old ``reduce_op``."""
    there = getattr(dist, name, None)
    return not name.startswith("_") and name != "reduce_op" and there is not None and not isinstance(there, ModuleType)


def __getattr__(name: str) -> Any:
    if _is_torchs(name):
        return getattr(dist, name)
    raise missing(f"module {__name__!r}", name, "torch.distributed has no function or class of it")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(dist) if _is_torchs(name))})
