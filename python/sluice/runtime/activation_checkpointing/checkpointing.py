"""DeepSpeed's ``checkpointing``: activations that backward computes again, over ``torch.utils.checkpoint``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint

from ..._refusals import missing

__all__ = ["checkpoint", "configure", "is_configured", "non_reentrant_checkpoint", "reset"]

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

    Raises ValueError for ``mpu_`` and ``partition_activations``, which need several ranks, for ``contiguous_checkpointing``
    and for ``profile``. ``checkpoint_in_cpu`` and ``synchronize`` hold already; ``deepspeed_config`` is read by the engine.
    """
    global _configured
    for name, value in (
        ("mpu_", mpu_),
        ("partition_activations", partition_activations),
        ("contiguous_checkpointing", contiguous_checkpointing),
        ("profile", profile),
    ):
        if value:
            raise ValueError(f"{name}: activations of one rank are whole, and PyTorch allocates them; leave it out")
    _configured = True


def is_configured() -> bool:
    """Whether :func:`configure` was called."""
    return _configured


def reset() -> None:
    """Does nothing: no buffers are kept."""


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
