"""Changes of parameters inside GatheredParameters: all of them are set, or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from .. import ranks
from ..engine_module import outside_budget
from ..owners import Owner

if TYPE_CHECKING:
    from ..offloaded import OffloadedModel

_END = "inside GatheredParameters, which keeps none of its changes"

def changed_elements(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """Where the bits differ: a NaN that stays is no change, and -0.0 in place of 0.0 is one."""
    bits = {2: torch.int16, 4: torch.int32}[now.element_size()]
    return before.contiguous().view(bits) != now.contiguous().view(bits)


@outside_budget()
def show_changed(gathered: Iterable[tuple[torch.Tensor, Owner]]) -> None:
    """Shows what contexts that have ended, inside of one that has not, have changed."""
    for parameter, owner in gathered:
        values = owner.model.changes.get(owner.name)
        if values is not None and owner.model.loop.is_weight(parameter):
            parameter.data = values.clone()


class _Change(NamedTuple):
    """``places`` of a parameter: in the modules of its model, with the key there."""

    parameter: torch.Tensor
    owner: Owner
    before: torch.Tensor  # its ``data``: memory of the engine, or an outer context's copy
    places: list[tuple[nn.Module, str]]


class Changes:
    """Of the parameters of one context. A script changes copies: bf16 weights in the engine's memory may be a part of their masters,
    which are read and saved inside the context too.
    """

    def __init__(self) -> None:
        self._parameters: list[_Change] = []

    @outside_budget()
    def begin(self, gathered: Iterable[tuple[torch.Tensor, Owner]]) -> None:
        """Each parameter gets a copy of its values, until :meth:`note` or :meth:`take_back`."""
        for parameter, owner in gathered:
            self._parameters.append(_Change(parameter, owner, parameter.data, []))
            parameter.data = parameter.data.clone()
        places = {id(change.parameter): change.places for change in self._parameters}
        for model in {change.owner.model for change in self._parameters}:
            for module in model.model.modules():
                for key, parameter in module._parameters.items():
                    if id(parameter) in places:
                        places[id(parameter)].append((module, key))

    def mistakes(self) -> set[str]:
        """Why changes cannot be kept: a script has set ``data`` of another shape, or another parameter. That one is taken out of the model again."""
        found = set()
        for parameter, owner, before, places in self._parameters:
            if parameter.shape != before.shape:
                found.add(
                    f"parameter {owner.name} of shape {list(before.shape)} was given one of {list(parameter.shape)} {_END}: set "
                    "values of the parameter's own shape"
                )
            for module, key in places:
                now = module._parameters.get(key)
                if now is not None and now is not parameter:
                    module._parameters[key] = parameter  # type: ignore[assignment]
                    found.add(
                        f"parameter {owner.name} was replaced by another object {_END}: write to the parameter itself, as "
                        "load_state_dict() does with assign=False"
                    )
        return found

    @outside_budget()
    def note(self, modifier: int) -> None:
        """For the end of the outermost context: what was written to, as all ranks agree. They get the values of rank ``modifier``."""
        while self._parameters:
            parameter, owner, before, _ = self._parameters[-1]
            values = parameter.detach().to(before, copy=True)  # `data` that a script set may lie elsewhere
            ranks.share([values], modifier)
            is_changed = owner.name in owner.model.changes or bool(changed_elements(before, values).any())
            is_apart = is_changed and owner.model.loop.is_weight(before)  # the engine's memory gets nothing yet
            parameter.data = parameter.data.to(before) if is_apart else before
            if is_changed:
                owner.model.changes[owner.name] = values
                parameter.data.copy_(values)  # for outer contexts, also of the ranks that did not write
            self._parameters.pop()

    def take_back(self) -> None:
        """Changes that are not noted are none."""
        while self._parameters:
            change = self._parameters.pop()
            change.parameter.data = change.before


def _check_finite(model: OffloadedModel, changes: Mapping[str, torch.Tensor], changed: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError for a change that no master takes."""
    trained = {name for names, _ in model.loop.groups for name in names}
    for name, values in changes.items():
        if name in trained and not (values.isfinite() | ~changed[name]).all():
            raise ValueError(
                f"parameter {name} was set to values that are not all finite, inside GatheredParameters: none of the changes is "
                f"kept, of {len(changes)} changed parameters. Set finite values"
            )


def set_changes(model: OffloadedModel, changes: Mapping[str, torch.Tensor]) -> None:
    """Sets the masters of the elements that changed. ``changes``: values of parameters. Every rank calls it with equal ones.

    Raises ValueError for values that are not finite, of a parameter that trains: no parameter has changed then.
    """
    changes = {name: values.cpu() for name, values in changes.items()}
    changed = {
        name: changed_elements(before, changes[name])
        for names in model.by_unit(changes)
        for name, before in zip(names, model.loop.parameters(names), strict=True)
    }
    _check_finite(model, changes, changed)
    for names in model.by_unit(changes):
        found = {name: _value_of(model, name, changes[name], changed[name]) for name in names}
        model.loop.set_parameters({name: value for name, value in found.items() if value is not None})


def _value_of(model: OffloadedModel, name: str, values: torch.Tensor, changed: torch.Tensor) -> torch.Tensor | None:
    """New values of a parameter; None: nothing has changed. Elements that did not change keep what their masters have beyond the data type that computes."""
    if model.only_computes or not model.parameters[name].requires_grad:
        return values
    if not changed.any():
        return None
    master = model.loop.master(name)
    return torch.where(changed, values.to(master.dtype), master)
