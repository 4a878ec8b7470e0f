"""Writes to the weights of a unit that a forward or backward has entered: they go when it is left, so they are errors.

Where the memory of a unit is the home of its weights, as on a host that computes itself, such a write may stay. Elsewhere
it is lost. Either way a run would have other numbers on another tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from ..owners import is_here, owner_of

INSTEAD = (
    "write between steps, inside GatheredParameters(parameters, modifier_rank=0), by copy_() under torch.no_grad(), or by "
    "safe_set_full_fp32_param of sluice.utils"
)


def rescaled_tables(model: nn.Module) -> set[torch.Tensor]:
    """Weights whose rows an embedding rescales itself, to its ``max_norm``: each forward does it anew, so nothing is lost."""
    modules = (module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag)))
    return {module.weight for module in modules if module.max_norm is not None}


class Writes:
    """Finds writes to the parameters of a unit.

    PyTorch counts the writes to a tensor in place, except those through ``.data``. A parameter that is given other memory
    through ``.data`` is no view of the unit's weights. ``is_weight``: whether a tensor is one.
    """

    __slots__ = ("_counted", "_is_weight", "_params", "_unit")

    def __init__(
        self,
        unit: str,
        params: Iterable[tuple[str, torch.Tensor]],
        rescaled: set[torch.Tensor],
        is_weight: Callable[[torch.Tensor], bool],
    ) -> None:
        self._unit, self._params, self._is_weight = unit, list(params), is_weight
        self._counted = [(name, each) for name, each in self._params if each not in rescaled and not each.is_inference()]

    def count(self) -> list[int]:
        """Writes to each parameter since it was made."""
        return [parameter._version for _, parameter in self._counted]

    def lost(self, before: Sequence[int], where: str) -> str | None:
        """The message about a parameter that was written to since ``before`` in a forward or a backward; None: nothing was."""
        replaced = next((name for name, each in self._params if is_here(each) and not (self._is_weight(each) or _is_shown(each))), None)
        if replaced is not None:
            return (
                f"parameter {replaced} of unit {self._unit} was given other values through .data in a {where}, and they would be lost: "
                + INSTEAD
            )
        if before == self.count():
            return None
        for (name, parameter), count in zip(self._counted, before):
            if parameter._version != count and not _is_shown(parameter):
                return (
                    f"parameter {name} of unit {self._unit} was written to in place in a {where}, and the write would be lost: "
                    f"{INSTEAD}. An engine that is used on may have what was written"
                )
        return None


def _is_shown(parameter: torch.Tensor) -> bool:
    """Whether GatheredParameters keeps the writes to a parameter, or refuses them."""
    owner = owner_of(parameter)
    return owner is not None and owner.model.shown[owner.name] > 0


def refuse(lost: str | None) -> None:
    """Raises ValueError with what :class:`Writes` has found."""
    if lost is not None:
        raise ValueError(lost)
