"""Which model over memory tiers a parameter belongs to."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from .offloaded import OffloadedModel


log = logging.getLogger("sluice")


class Owner(NamedTuple):
    """``name``: the parameter's name in the model; ``unit``: index of the unit that it belongs to."""

    model: OffloadedModel
    name: str
    unit: int


_owners: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def own(parameter: torch.Tensor, model: OffloadedModel, name: str, unit: int) -> None:
    """Notes the model whose unit has the parameter, and its name there. Keeps neither alive."""
    _owners[parameter] = (weakref.ref(model), name, unit)


def disown(parameter: torch.Tensor) -> None:
    """Forgets the parameter's owner, if it has one."""
    _owners.pop(parameter, None)


def owner_of(parameter: torch.Tensor) -> Owner | None:
    """None for a parameter of no engine, or of one that is gone."""
    found = _owners.get(parameter)
    model = found[0]() if found else None
    return None if model is None else Owner(model, found[1], found[2])


def is_here(tensor: torch.Tensor) -> bool:
    """Whether it has elements in memory. An empty parameter has the size of its whole one where a forward asks for it."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.numel() > 0


def made_of(model: torch.nn.Module) -> OffloadedModel | None:
    """The one that a living engine has made of this very module; None where there is none."""
    owners = map(owner_of, model.parameters())
    return next((owner.model for owner in owners if owner is not None and owner.model.model is model), None)


def make_way(model: torch.nn.Module) -> None:
    """For an engine that is about to train the model: one that only computes over it gives way. Raises ValueError where it cannot."""
    live = made_of(model)
    if live is not None and live.only_computes:
        live.give_way()


def check_free(model: torch.nn.Module) -> None:
    """Raises ValueError for a parameter that an engine has already.

    An engine that a script has dropped without destroy() ends, and leaves its values in the model. One whose values cannot be
    left is a ValueError, and goes on.
    """
    for name, parameter in model.named_parameters():
        owner = owner_of(parameter)
        if owner is not None and _is_dropped(owner.model):
            _end_dropped(owner)
        elif owner is not None:
            raise ValueError(
                f"parameter {name} belongs to another engine, which has its values: make an engine of each model once. Train on with that "
                "engine, or end it by destroy(), which leaves its values in the model (Lightning: trainer.strategy.model.destroy() right "
                "after fit(); Transformers: trainer.accelerator.free_memory()). To evaluate, call that engine, or initialize() without an "
                "optimizer and with the module that it was made of. An engine that was dropped lives on while its optimizer or its scheduler is used"
            )


def _is_dropped(model: OffloadedModel) -> bool:
    """Whether no script can call the engine or the optimizer that it was made for."""
    if model.user is None:
        return False
    if model.user() is not None:
        gc.collect()  # engines are circles
    return model.user() is None


def _end_dropped(owner: Owner) -> None:
    why = owner.model.stays_empty()
    if why is not None:
        raise ValueError(
            f"parameter {owner.name} belongs to an engine that was dropped without destroy(), which could not leave its values in the "
            f"model: {why}. The model's state_dict() has copies of the weights: load them into a newly built model"
        )
    log.warning("an engine that was dropped without destroy() ends, since another one is made of its model, which has its values again")
    owner.model.close()
