"""Facts of a model that all ranks share, beside those of the configuration, which the loop compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..._core import version as __version__
from .. import ranks
from ..objects import stored
from ..optimizer import values_of
from ..units import Unit, is_kept


def kept_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Buffers, and the parameters that stay with them in their modules, by name and in the order of names."""
    kept = [(name, parameter) for name, parameter in model.named_parameters() if is_kept(parameter)]
    return dict(sorted([*model.named_buffers(), *kept]))


def facts_of(
    units: Sequence[Unit], parameters: Mapping[str, nn.Parameter], kept: Mapping[str, torch.Tensor], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """``groups``: a client's. Parameters have places in their unit, by which the ranks divide its elements, so their order counts."""
    facts: dict[str, Any] = {"sluice": __version__, "torch": torch.__version__}
    facts.update({f"parameter group {number}": values_of(group, number) for number, group in enumerate(groups)})
    numbers = {parameter: number for number, group in enumerate(groups) for parameter in group["params"]}
    for name, parameter in parameters.items():
        trains = "trained" if parameter.requires_grad else "frozen"
        group = f", in group {numbers[parameter]}" if parameter in numbers else ""
        facts[f"parameter {name}"] = f"{_kind(parameter)}, {trains}{group}"
    for name, tensor in kept.items():
        facts[f"{_noun(tensor)} {name}"] = _kind(tensor)
    facts["the list of units"] = [unit.name for unit in units]
    facts.update({f"the order of parameters in unit {unit.name}": [name for name, _ in unit.params] for unit in units})
    return facts


def check_shared(kept: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError for what cannot start with the values of rank 0, where there are several ranks."""
    for name, tensor in kept.items() if ranks.world_size() > 1 else ():
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            raise ValueError(
                f"{_noun(tensor)} {name} is {kind}, and ranks share plain tensors only: register its parts (indices and values) as "
                "buffers, and put them together in forward()"
            )


def _noun(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, nn.Parameter) else "buffer"


def _kind(tensor: torch.Tensor) -> str:
    kind = f"{list(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.layout is not torch.strided:
        return f"{kind}, {str(tensor.layout).removeprefix('torch.')}"
    once = stored(tensor).shape
    return kind if once == tensor.shape else f"{kind}, expanded from {list(once)}"
