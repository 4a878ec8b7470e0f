"""DeepSpeed's ``groups``: all ranks share the parameters of a model, and no rank has a part of its layers."""

from __future__ import annotations

from typing import Any

from .._refusals import missing
from .. import comm

__all__ = [
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
]


def get_data_parallel_world_size() -> int:
    """Ranks that train."""
    return comm.get_world_size()


def get_data_parallel_rank() -> int:
    """The rank of this process."""
    return comm.get_rank()


def get_data_parallel_group() -> Any:
    """The default group of ``torch.distributed``. Raises ValueError before ``init_distributed``."""
    return comm.get_world_group()


def get_model_parallel_world_size() -> int:
    """1: every rank has the whole model."""
    return 1


def get_model_parallel_rank() -> int:
    """0."""
    return 0


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
