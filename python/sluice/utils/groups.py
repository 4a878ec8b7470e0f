"""DeepSpeed's ``groups`` for one rank: each group is the whole world, of size 1."""

from __future__ import annotations

from typing import Any

from .. import comm

__all__ = [
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
]


def get_data_parallel_world_size() -> int:
    """1."""
    return comm.get_world_size()


def get_data_parallel_rank() -> int:
    """0."""
    return comm.get_rank()


def get_data_parallel_group() -> Any:
    """The default group of ``torch.distributed``. Raises ValueError before ``init_distributed``."""
    return comm.get_world_group()


get_model_parallel_world_size = get_data_parallel_world_size
get_model_parallel_rank = get_data_parallel_rank
