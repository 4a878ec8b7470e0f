"""DeepSpeed's ``comm``: functions of ``torch.distributed``.

``comm.NAME`` is ``torch.distributed.NAME`` where it is not below.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist

from .._training import ranks

__all__ = ["get_local_rank", "get_rank", "get_world_group", "get_world_size", "init_distributed", "is_initialized"]


def init_distributed(dist_backend: str | None = None, *, timeout: datetime.timedelta | None = None, **_: Any) -> None:
    """Makes ``torch.distributed``'s default group, where there is none: of the ranks that a launcher (torchrun) started.

    One process alone opens no port. ``dist_backend``: None or "gloo" for tensors in CPU memory; other names of torch's.
    ``timeout``: how long the ranks may take to meet; None: a minute. Raises ValueError for an environment that cannot be
    (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), ConnectionError when the ranks have not met in time.
    """
    backend = dist_backend or "gloo"
    ranks.join(backend, ranks.JOIN_SECONDS if timeout is None else timeout.total_seconds())
    if not dist.is_initialized():
        dist.init_process_group(backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)


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
