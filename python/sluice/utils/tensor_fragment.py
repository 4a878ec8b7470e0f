"""Whole parameters, optimizer states and gradients of an engine, read and set between passes.

DeepSpeed has these functions in a module of this name.
"""

from __future__ import annotations

import ctypes
import zlib

import torch

from .._errors import wrong_type
from .._training import ranks
from .._training.engine_module import outside_budget
from .._training.owners import Owner, owner_of
from .._training.start.agreement import check_agreement

__all__ = [
    "safe_get_full_fp32_param",
    "safe_get_full_grad",
    "safe_get_full_optimizer_state",
    "safe_get_local_fp32_param",
    "safe_get_local_grad",
    "safe_get_local_optimizer_state",
    "safe_set_full_fp32_param",
    "safe_set_full_grad",
    "safe_set_full_optimizer_state",
    "safe_set_local_fp32_param",
    "safe_set_local_grad",
    "safe_set_local_optimizer_state",
]


def _owner(parameter: torch.nn.Parameter) -> Owner:
    owner = owner_of(parameter) if isinstance(parameter, torch.Tensor) else None
    if owner is None:
        raise ValueError("this is no parameter of an engine: pass a parameter of the model that was initialized")
    return owner


def _tensor(value: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise wrong_type("value", value, "a torch.Tensor")
    return value.resolve_conj().resolve_neg()  # its bytes are read, and not the operations that wait on them


def _of_all_ranks(what: str, owner: Owner, value: torch.Tensor) -> torch.Tensor:
    """The value, which is the same tensor on all ranks. Raises ValueError on all of them where it is not."""
    value = _tensor(value)
    if ranks.world_size() > 1:
        held = value.detach().to("cpu", torch.float32).contiguous()
        checksum = zlib.crc32((ctypes.c_char * held.nbytes).from_address(held.data_ptr()))  # numpy may not be there
        check_agreement({f"the {what} to be set": f"that of {owner.name}, of shape {list(value.shape)} and checksum {checksum:08x},"})
    return value


def _moment(owner: Owner, key: str) -> int:
    names = owner.model.loop.moment_names
    if key not in names:
        raise ValueError(f"the optimizer has no state {key!r}; it has {', '.join(names) or 'none'}")
    index: int = names.index(key)
    return index


def safe_get_full_fp32_param(param: torch.nn.Parameter) -> torch.Tensor:
    """A copy of the fp32 master weights, in the parameter's shape. Waits for updates.

    Inside GatheredParameters it has the values from before the changes there. Raises ValueError inside a forward or backward, and for a frozen parameter.
    """
    owner = _owner(param)
    values: torch.Tensor = owner.model.loop.master(owner.name)
    return values


def safe_set_full_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the fp32 master weights; the weights that compute follow. ``value`` has the parameter's shape.

    Every rank calls it with equal values: each rank sets the elements that it keeps, from its own ``value``. Raises ValueError
    where the ranks' values differ, and inside GatheredParameters, a forward or a backward.
    """
    owner = _owner(param)
    owner.model.loop.set_master(owner.name, _of_all_ranks("fp32 parameter", owner, value))


def safe_get_full_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor:
    """A copy of a state in fp32. ``optim_state_key``: ``exp_avg``, ``exp_avg_sq``, ..., or ``fp32_param``."""
    owner = _owner(param)
    if optim_state_key == "fp32_param":
        return safe_get_full_fp32_param(param)
    values: torch.Tensor = owner.model.loop.moment(owner.name, _moment(owner, optim_state_key))
    return values


def safe_set_full_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    """Sets a state. ``value`` has the parameter's shape; states in bf16 are rounded to nearest.

    Every rank calls it with equal values, as :func:`safe_set_full_fp32_param`.
    """
    owner = _owner(param)
    if optim_state_key == "fp32_param":
        safe_set_full_fp32_param(param, value)
    else:
        index = _moment(owner, optim_state_key)
        owner.model.loop.set_moment(owner.name, index, _of_all_ranks(f"state {optim_state_key}", owner, value))


@outside_budget()
def safe_get_full_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """A copy of the gradient that the step has accumulated, in fp32, without the loss scale.

    None before a backward of the parameter's unit. Zeros after one that did not use the parameter.
    """
    owner = _owner(param)
    gradient: torch.Tensor | None = owner.model.loop.gradient(owner.name)
    return None if gradient is None else gradient.float() / (owner.model.loop.loss_scale * owner.model.loop.gradient_divisor)


def safe_set_full_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets the gradient of the step, without the loss scale. It is rounded to the type that gradients are summed in
    (data_types.grad_accum_dtype, else the type that computes), and over ranks to communication_data_type.

    Every rank calls it with equal values, as :func:`safe_set_full_fp32_param`.
    """
    owner = _owner(param)
    gradient = _of_all_ranks("gradient", owner, value).float()
    owner.model.loop.set_gradient(owner.name, gradient * owner.model.loop.loss_scale * owner.model.loop.gradient_divisor)


# Local: this rank's shard of a whole tensor, by DeepSpeed's rule for ZeRO-3. The flat tensor is cut into as many equal parts as
# there are ranks, and the last parts are filled up with zeros. Where Sluice itself keeps the values is another matter.


def _shard_size(param: torch.nn.Parameter) -> int:
    _owner(param)
    count: int = param.ds_numel  # type: ignore[attr-defined]
    return -(-count // ranks.world_size())


@outside_budget()
def _shard(param: torch.nn.Parameter, whole: torch.Tensor) -> torch.Tensor:
    size = _shard_size(param)
    flat = torch.zeros(size * ranks.world_size(), dtype=whole.dtype, device="cpu")
    flat[: whole.numel()] = whole.flatten()
    return flat.narrow(0, ranks.rank() * size, size).clone()


def _whole(param: torch.nn.Parameter, shard: torch.Tensor) -> torch.Tensor:
    size = _shard_size(param)
    shard = _tensor(shard)
    if shard.numel() != size:
        raise ValueError(f"a shard of {shard.numel()} elements is given, and this rank's has {size}")
    flat = ranks.gathered(shard.detach().cpu().flatten().float())
    return flat[: param.ds_numel].view(param.ds_shape)  # type: ignore[attr-defined]


def safe_get_local_fp32_param(param: torch.nn.Parameter) -> torch.Tensor:
    """A copy of this rank's shard of the fp32 master weights, with one dimension. Otherwise as the whole."""
    return _shard(param, safe_get_full_fp32_param(param))


def safe_set_local_fp32_param(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets this rank's shard of the fp32 master weights. Every rank calls it. ``value`` has as many elements."""
    safe_set_full_fp32_param(param, _whole(param, value))


def safe_get_local_optimizer_state(param: torch.nn.Parameter, optim_state_key: str) -> torch.Tensor:
    """A copy of this rank's shard of a state, with one dimension. Otherwise as the whole."""
    return _shard(param, safe_get_full_optimizer_state(param, optim_state_key))


def safe_set_local_optimizer_state(param: torch.nn.Parameter, value: torch.Tensor, optim_state_key: str) -> None:
    """Sets this rank's shard of a state. Every rank calls it. ``value`` has as many elements."""
    safe_set_full_optimizer_state(param, _whole(param, value), optim_state_key)


def safe_get_local_grad(param: torch.nn.Parameter) -> torch.Tensor | None:
    """A copy of this rank's shard of the gradient of all ranks, with one dimension; None where there is none."""
    whole = safe_get_full_grad(param)
    return None if whole is None else _shard(param, whole)


def safe_set_local_grad(param: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Sets this rank's shard of the gradient. Every rank calls it. ``value`` has as many elements."""
    safe_set_full_grad(param, _whole(param, value))
