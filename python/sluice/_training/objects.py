"""Objects of all ranks, where PyTorch has no NumPy: torch.distributed's own calls for objects need it."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist


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
    return [pickle.loads(bytes(part[:size].tolist())) for part, size in zip(parts, sizes.tolist())]
