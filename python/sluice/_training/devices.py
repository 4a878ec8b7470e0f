"""The device that computes, as the script and the configuration choose it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from .._launcher import local_rank


def current_gpu() -> int | None:
    """The GPU that the script made current; None where PyTorch has none.

    A script that has not used a GPU yet gets that of its LOCAL_RANK.
    """
    if not torch.cuda.is_available():
        return None
    if torch.cuda.is_initialized():
        return torch.cuda.current_device()
    return min(local_rank(), torch.cuda.device_count() - 1)


def check_has_values(model: nn.Module) -> None:
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
    """Puts tensors where the model computes, in its data type where they are floating-point numbers."""
    for tensor in tensors:
        tensor.data = tensor.data.to(device, dtype if tensor.is_floating_point() else None)
