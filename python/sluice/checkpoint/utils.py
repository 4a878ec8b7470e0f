"""Copies of tensors for ``torch.save``."""

from __future__ import annotations

from typing import Any

import torch

from .._training.engine_module import outside_budget

__all__ = ["clone_tensors_for_torch_save"]


@outside_budget()
def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """``item`` with a copy on ``device`` for each tensor in it, also in lists, tuples and dicts.

    ``torch.save`` writes the whole storage of a tensor, so a view would bring its neighbours along. A tensor that is in
    ``item`` twice, as a tied weight, has one copy, which is there twice.
    """
    return _cloned(item, device, {})


def _cloned(item: Any, device: torch.device | str, copies: dict[torch.Tensor, torch.Tensor]) -> Any:
    """``copies``: those made so far, by their original."""
    if isinstance(item, torch.Tensor):
        if item not in copies:
            copies[item] = item.detach().to(device, copy=True)
        return copies[item]
    if isinstance(item, (list, tuple)):
        return type(item)([_cloned(value, device, copies) for value in item])
    if isinstance(item, dict):
        return type(item)({key: _cloned(value, device, copies) for key, value in item.items()})
    return item
