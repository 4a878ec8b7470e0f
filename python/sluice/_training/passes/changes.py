"""Changes of parameters inside GatheredParameters: all of them are set, or none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ..offloaded import OffloadedModel

Change = tuple[torch.Tensor, torch.Tensor]  # values before, and now


def changed_elements(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Where the bits differ: a NaN that stays is no change, and -0.0 in place of 0.0 is one."""
    bits = {2: torch.int16, 4: torch.int32}[now.element_size()]
    return before.contiguous().view(bits) != now.contiguous().view(bits)


def put_back(model: OffloadedModel, values: Mapping[str, torch.Tensor]) -> None:
    """Shows parameters with their values before a change. Where the weights compute in place, nothing else would undo a write."""
    for name, value in values.items():
        parameter, unit = model.parameters[name], model.unit_of(name)
        model.loop.enter(unit, False)
        if parameter.shape == value.shape:
            parameter.data.copy_(value)
        else:  # an outer context still has what the script put there
            parameter.data = value
        model.loop.leave(unit)


def _check_finite(model: OffloadedModel, changes: Mapping[str, Change]) -> None:
    """Raises ValueError for a change that no master takes; then none of them is made."""
    trained = {name for names, _ in model.loop.groups for name in names}
    for name, (before, values) in changes.items():
        if name in trained and not values[changed_elements(before, values)].isfinite().all():
            put_back(model, {other: first for other, (first, _) in changes.items()})
            raise ValueError(
                f"parameter {name} was set to values that are not all finite, inside GatheredParameters: none of the changes is "
                f"kept, of {len(changes)} changed parameters. Set finite values"
            )


def set_changes(model: OffloadedModel, changes: Mapping[str, Change]) -> None:
    """Sets the masters of the elements that changed. Every rank calls it with equal changes.

    Raises ValueError for values that are not finite, of a parameter that trains: no parameter has changed then.
    """
    _check_finite(model, changes)
    for name, (before, values) in changes.items():
        changed = changed_elements(before, values).cpu()
        if model.only_computes or not model.parameters[name].requires_grad:
            model.loop.set_parameter(name, values)
        elif changed.any():  # the other elements keep what their masters have beyond the data type that computes
            master = model.loop.master(name)
            master[changed] = values.cpu()[changed].to(master.dtype)
            model.loop.set_master(name, master)
