"""Refusals of what differentiates or maps a forward in a way that no hook on a unit can follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._C._functorch import TransformType, get_unwrapped, is_functorch_wrapped_tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters
from torch.autograd import forward_ad

from .containers import RECORDS, tensors_in

_WAY_OUT = "torch.autograd.grad and torch.autograd.functional.jacobian are"


def _is_inside(*kinds: TransformType) -> bool:
    if torch._C._functorch.maybe_current_level() is None:
        return False
    return any(transform.key() in kinds for transform in retrieve_all_functorch_interpreters())


def refuse_transforms() -> None:
    """Raises ValueError inside torch.func's transforms that differentiate: weights are gone when these look at them again."""
    if _is_inside(TransformType.Grad, TransformType.Jvp):
        raise ValueError(
            "torch.func.grad, vjp, jvp, jacrev, jacfwd and hessian are not possible with a model over memory tiers, whose "
            f"weights come and go: {_WAY_OUT}"
        )


def _needs_gradient(tensor: torch.Tensor) -> bool:
    while is_functorch_wrapped_tensor(tensor):  # inside vmap, the tensor of all samples says it
        tensor = get_unwrapped(tensor)
    return tensor.requires_grad


def refuse_in_graph(name: str, parameters: Iterable[torch.Tensor], args: Any, kwargs: Any) -> None:
    """Raises ValueError for a forward of the unit ``name`` whose graph no backward of it could follow.

    Inside torch.func.vmap that is one with gradients, and under forward-mode differentiation one of dual tensors.
    """
    if forward_ad._current_level >= 0:
        if any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors_in((args, kwargs), RECORDS)):
            raise ValueError(
                "torch.autograd.forward_ad (dual_level) is not possible with gradients enabled and a model over memory tiers, whose "
                f"weights come and go: call the model inside torch.no_grad(), which gives the tangents, or {_WAY_OUT.removesuffix(' are')}"
            )
    if _is_inside(TransformType.Vmap):
        inputs = tensors_in((args, kwargs), RECORDS)
        if any(parameter.requires_grad for parameter in parameters) or any(map(_needs_gradient, inputs)):
            raise ValueError(
                f"torch.func.vmap over {name} is not possible with gradients enabled: vmap hides its graph, so its backward would not "
                "have the weights, which come and go. Call it with the whole batch in place of vmap, or inside torch.no_grad() where "
                "nothing is trained"
            )
