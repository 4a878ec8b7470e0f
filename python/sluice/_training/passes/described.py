"""Describes an empty parameter by attributes with DeepSpeed's names."""

from __future__ import annotations

import functools

import torch

from ...runtime.zero.partition_parameters import ZeroParamStatus
from .. import ranks

_NAMES = ("ds_shape", "ds_numel", "ds_id", "ds_status", "ds_active_sub_modules", "ds_tensor", "partition_numel")


def describe(parameter: torch.Tensor, number: int) -> None:
    """``parameter``: with its values. ``number``: its place in the model."""
    parameter.ds_shape = parameter.shape  # type: ignore[attr-defined]
    parameter.ds_numel = parameter.numel()  # type: ignore[attr-defined]
    parameter.ds_id = number  # type: ignore[attr-defined]
    parameter.ds_status = ZeroParamStatus.NOT_AVAILABLE  # type: ignore[attr-defined]
    parameter.ds_active_sub_modules = set()  # type: ignore[attr-defined]
    _describe_share(parameter)


def _describe_share(parameter: torch.Tensor) -> None:
    """``ds_tensor`` and ``partition_numel()``: elements of this rank's shard by DeepSpeed's rule, filled up as in its last parts.

    The tensor itself is empty, as DeepSpeed's of a parameter on a drive.
    """
    elements = -(-parameter.numel() // ranks.world_size())
    shard = torch.empty(0, dtype=parameter.dtype, device="cpu")
    shard.ds_numel = elements  # type: ignore[attr-defined]
    parameter.ds_tensor = shard  # type: ignore[attr-defined]
    parameter.partition_numel = functools.partial(int, elements)  # type: ignore[attr-defined]  # can be pickled


def undescribe(parameter: torch.Tensor) -> None:
    """A parameter that has its values again is an ordinary one. Nothing for one that is still empty."""
    if parameter.numel() == 0:
        return
    for name in _NAMES:
        vars(parameter).pop(name, None)
