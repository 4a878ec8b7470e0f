"""The device that computes, as the script and the configuration choose it, and the cores beside it."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable

import torch
from torch import nn

from .._environment.launcher import local_rank
from .units import is_wide_float

log = logging.getLogger("sluice")


def current_gpu() -> int | None:
    """The GPU that the script made current; None where PyTorch has none.

    A script that has not used a GPU yet gets that of its LOCAL_RANK: the ranks of a host take its GPUs in turn.
    """
    if not torch.cuda.is_available():
        return None
    if torch.cuda.is_initialized():
        return torch.cuda.current_device()
    return local_rank() % torch.cuda.device_count()


@functools.cache  # once
def warn_if_bound() -> None:
    """Warns where OpenMP, loaded with PyTorch, bound this thread to few cores: the threads of an engine inherit them."""
    names = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
    binding = [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]
    cores = len(os.sched_getaffinity(0))
    if not binding or cores >= torch.get_num_threads():
        return
    log.warning(
        "%s: with it, import torch bound this thread to %d of the %d cores that PyTorch counts, and Sluice's threads share them; "
        "unset it, or give the thread its cores back: cores = os.sched_getaffinity(0) before import torch, and "
        "os.sched_setaffinity(0, cores) after it",
        " ".join(binding),
        cores,
        torch.get_num_threads(),
    )


def check_has_values(model: nn.Module) -> None:
    """Raises ValueError for a parameter or buffer without values."""
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ValueError(f"parameter {name} is on the meta device: it has no values to train from")
        if parameter.numel() != getattr(parameter, "ds_numel", parameter.numel()):
            raise ValueError(f"parameter {name} is empty: it belonged to an engine that has ended. Build the model again, or set its values")
        if parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(f"parameter {name} is on {parameter.device}: weights are placed from the CPU or from a GPU")
    for name, buffer in model.named_buffers():
        if buffer.device.type == "meta":
            raise ValueError(f"buffer {name} is on the meta device: it has no values to compute with")


def move(tensors: Iterable[torch.Tensor], device: torch.device, dtype: torch.dtype) -> None:
    """Puts tensors where the model computes, in its data type where they are floating-point numbers of 16 bits or more."""
    for tensor in tensors:
        tensor.data = tensor.data.to(device, dtype if is_wide_float(tensor) else None)
