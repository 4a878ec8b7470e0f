"""DeepSpeed's ``utils.logging``: the logger, and messages of some ranks only."""

from __future__ import annotations

import logging
from collections.abc import Iterable

__all__ = ["log_dist", "logger"]

logger = logging.getLogger("sluice")


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs a message of this rank if ``ranks`` has it, or begins with -1: all. Without ``ranks``, of no rank.

    Before ``init_distributed`` a process does not know its rank: it logs every message, as rank -1.
    """
    from .. import comm  # it needs PyTorch, the logger does not

    wanted = list(ranks or ())
    if not comm.is_initialized():
        logger.log(level, "[Rank -1] %s", message)
    elif comm.get_rank() in wanted or wanted[:1] == [-1]:
        logger.log(level, "[Rank %d] %s", comm.get_rank(), message)
