"""DeepSpeed's ``checkpointing``: activations that backward computes again, over ``torch.utils.checkpoint``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from ..._refusals import missing

__all__ = ["checkpoint", "configure", "is_configured", "non_reentrant_checkpoint", "reset"]

log = logging.getLogger("sluice")

_configured = False


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A call of ``function``, whose activations are computed again in backward, with the random numbers of forward."""
    # PyTorch would take some keywords for its own.
    return torch.utils.checkpoint.checkpoint(functools.partial(function, **kwargs), *args, use_reentrant=False)


non_reentrant_checkpoint = checkpoint


def configure(
    mpu_: Any = None,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """For scripts that call it. Inputs of checkpointed functions are whole and in host memory, where the CPU computes.

    ``partition_activations`` and ``contiguous_checkpointing`` change nothing, and a line in the log says so: DeepSpeed
    partitions over the ranks of a model that is split by tensor parallelism, and here each rank computes with whole layers.
    ``checkpoint_in_cpu`` and ``synchronize`` hold already; ``deepspeed_config`` is read by the engine. Raises ValueError for
    ``mpu_`` and ``profile``.
    """
    global _configured
    if mpu_:
        raise ValueError("mpu_: no model is split over ranks, and activations are whole on each; leave it out")
    if profile:
        raise ValueError("profile: no times of checkpointed functions are logged; leave it out, and use torch.profiler")
    for name, value, why in (
        ("partition_activations", partition_activations, "activations are whole on each rank, since no model is split over ranks"),
        ("contiguous_checkpointing", contiguous_checkpointing, "PyTorch allocates activations"),
    ):
        if value:
            log.info("checkpointing.configure: %s changes nothing: %s", name, why)
    _configured = True


def is_configured() -> bool:
    """Whether :func:`configure` was called."""
    return _configured


def reset() -> None:
    """Does nothing: no buffers are kept."""


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
