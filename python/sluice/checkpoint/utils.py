"""Copies of tensors for ``torch.save``."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["clone_tensors_for_torch_save"]


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """``item`` with a copy on ``device`` for each tensor in it, also in lists, tuples and dicts.

    ``torch.save`` writes the whole storage of a tensor, so a view would bring its neighbours along.
    """
    if isinstance(item, torch.Tensor):
        return item.detach().to(device, copy=True)
    if isinstance(item, (list, tuple)):
        return type(item)([clone_tensors_for_torch_save(value, device) for value in item])
    if isinstance(item, dict):
        return type(item)({key: clone_tensors_for_torch_save(value, device) for key, value in item.items()})
    return item
