"""DeepSpeed's ``comm``: functions of ``torch.distributed``, with a group of the one process.

``comm.NAME`` is ``torch.distributed.NAME`` where it is not below.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["get_local_rank", "get_rank", "get_world_group", "get_world_size", "init_distributed", "is_initialized"]


def refuse_ranks() -> None:
    """Raises ValueError where the launcher has started several processes."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        raise ValueError(f"WORLD_SIZE is {ranks}: a model is trained by one rank; start one process")


def init_distributed(dist_backend: str | None = None, **_: Any) -> None:
    """Makes ``torch.distributed``'s default group of this one process, where there is none: no port is opened.

    ``dist_backend``: None or "gloo" for tensors in CPU memory; other names of torch's. Raises ValueError for several ranks.
    """
    refuse_ranks()
    if dist.is_initialized():
        return
    dist.init_process_group(dist_backend or "gloo", store=dist.HashStore(), rank=0, world_size=1)


def is_initialized() -> bool:
    """Whether there is a default group."""
    return dist.is_available() and dist.is_initialized()


def get_rank(group: Any = None) -> int:
    """0: one rank trains."""
    return dist.get_rank(group) if is_initialized() else 0


def get_world_size(group: Any = None) -> int:
    """1: one rank trains."""
    return dist.get_world_size(group) if is_initialized() else 1


def get_local_rank() -> int:
    """``LOCAL_RANK`` of the environment, or 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def get_world_group() -> Any:
    """The default group. Raises ValueError before :func:`init_distributed`."""
    return dist.group.WORLD if is_initialized() else dist.distributed_c10d._get_default_group()


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and hasattr(dist, name):
        return getattr(dist, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and torch.distributed has none either")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in dir(torch.distributed) if not name.startswith("_"))})
