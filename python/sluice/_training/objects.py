"""Objects and tensors of all ranks, where torch.distributed's own calls need NumPy, or know too few data types."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

_PIECE_BYTES = 64 << 20


def gather(own: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """``own`` of each rank of the group, in their order. Every rank calls it."""
    on_gpus = dist.get_backend(group) == dist.Backend.NCCL  # which sends nothing else
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpus else torch.device("cpu")
    ranks = dist.get_world_size(group)
    data = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
    sizes = torch.empty(ranks, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(sizes, torch.tensor([data.numel()], device=device), group=group)
    most = int(sizes.max())
    mine = torch.zeros(most, dtype=torch.uint8, device=device)
    mine[: data.numel()] = data
    all_of_them = torch.empty(ranks * most, dtype=torch.uint8, device=device)
    dist.all_gather_into_tensor(all_of_them, mine, group=group)
    parts = all_of_them.cpu().view(ranks, most)
    return [pickle.loads(ctypes.string_at(part.data_ptr(), size)) for part, size in zip(parts, sizes.tolist())]


def to_first(own: bytes, sizes: Sequence[int], group: dist.ProcessGroup | None) -> list[bytes]:
    """``own`` of each rank on rank 0; an empty list on the others. ``sizes``: of all of them. Every rank calls it.

    One rank sends after the other, a piece at a time: the packets of all ranks may be large, and only rank 0 needs them. The
    group is on the CPU. It ends for all ranks at one time, so that none is in another call while others still send.
    """
    rank, found = dist.get_rank(), [own]
    for other in range(1, len(sizes)):
        packet = bytearray(sizes[other] if rank == 0 else 0)
        for begin in range(0, sizes[other], _PIECE_BYTES):
            count = min(_PIECE_BYTES, sizes[other] - begin)
            if rank == 0:
                dist.recv(torch.frombuffer(packet, dtype=torch.uint8, count=count, offset=begin), other, group=group)
            elif rank == other:
                dist.send(torch.frombuffer(bytearray(own[begin : begin + count]), dtype=torch.uint8), 0, group=group)
        found.append(bytes(packet))
    dist.barrier(group=group)
    return found if rank == 0 else []


def stored(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """The elements that an expanded tensor has in memory, each once. ``like``: the expanded one; None: the tensor itself."""
    expanded = tensor if like is None else like
    for dimension in range(tensor.dim()) if expanded.layout is torch.strided else ():
        if expanded.stride(dimension) == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def share(tensor: torch.Tensor, root: int, group: dist.ProcessGroup | None) -> None:
    """Gives every rank the values of ``root``. The group is on the CPU.

    They go as bytes, in the order of the elements: Gloo knows few data types, and no strides.
    """
    own = stored(tensor)
    is_plain = own.device.type == "cpu" and own.is_contiguous() and not own.is_conj() and not own.is_neg()
    with torch.no_grad():
        sent = own if is_plain else torch.empty(own.shape, dtype=own.dtype, device="cpu").copy_(own)
        dist.broadcast(sent.as_strided((sent.numel(),), (1,)).view(torch.uint8), root, group=group)
        if sent is not own and dist.get_rank() != root:
            own.copy_(sent)
