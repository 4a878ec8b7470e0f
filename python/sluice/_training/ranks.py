"""The ranks that share a model: processes of torchrun or of a script, joined by torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
import torch.distributed as dist


class RankGroup:
    """Collectives of one thread over its own process group of the CPU. Called from the extension.

    Sums are taken in the order of ranks and in fp32 at least, so they do not depend on the transport.
    """

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo")
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def all_gather(self, full: torch.Tensor) -> None:
        """``full``: bytes of all shards; this rank's are in place before the call."""
        own = full.view(self.world_size, -1)[self.rank].clone()
        dist.all_gather_into_tensor(full, own, group=self._group)

    def reduce_scatter(self, full: torch.Tensor) -> None:
        """Sums the shards of this rank into its place in ``full``."""
        received = torch.empty_like(full)
        dist.all_to_all_single(received.view(torch.uint8), full.view(torch.uint8), group=self._group)
        parts = received.view(self.world_size, -1)
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        full.view(self.world_size, -1)[self.rank].copy_(total)

    def all_reduce(self, values: torch.Tensor) -> None:
        parts = torch.empty(self.world_size, values.numel(), dtype=values.dtype)
        dist.all_gather_into_tensor(parts.view(-1), values.clone(), group=self._group)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        values.copy_(total)

    def broadcast(self, data: torch.Tensor, root: int) -> None:
        dist.broadcast(data, root, group=self._group)

    def barrier(self) -> None:
        dist.barrier(group=self._group)


def world_size() -> int:
    """Ranks of this run: those of torch.distributed, or of the environment that a launcher made."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def join(backend: str = "gloo") -> None:
    """Joins the ranks of the environment, where there are several and nobody has done so."""
    if world_size() > 1 and not dist.is_initialized():
        dist.init_process_group(backend)


def groups() -> tuple[RankGroup, RankGroup] | tuple[None, None]:
    """For the thread that trains, and for the one that gathers; None for one rank."""
    if world_size() == 1:
        return None, None
    join()
    return RankGroup(), RankGroup()


def share(tensors: Iterable[torch.Tensor], root: int | None = 0) -> None:
    """Gives every rank the values of ``root``: of rank 0 at the start, as DeepSpeed does."""
    if world_size() > 1:
        with torch.no_grad():
            for tensor in tensors:
                dist.broadcast(tensor.data, root or 0)


def gathered(part: torch.Tensor) -> torch.Tensor:
    """The parts of all ranks, one after the other."""
    if world_size() == 1:
        return part
    whole = torch.empty(world_size() * part.numel(), dtype=part.dtype)
    dist.all_gather_into_tensor(whole, part)
    return whole


def barrier() -> None:
    if world_size() > 1:
        dist.barrier()
