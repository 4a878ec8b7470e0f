"""Outputs of an engine whose gradients are divided by the micro-batches of a step, where no engine has divided the loss."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo

from .containers import OBJECTS, Search, tensors_in
from .inputs import share_attributes

if TYPE_CHECKING:
    from ..watched_loop import WatchedLoop
    from .hooks import Hooks

log = logging.getLogger("sluice")

_engines: list[None] = []  # one for each engine whose backward runs: threads append and pop, and would lose a count


@contextlib.contextmanager
def begun_by_engine() -> Iterator[None]:
    """For a backward that an engine begins: gradients of outputs are not divided in it, whosever they are.

    Nor in a backward that another thread begins at that time. A count of each thread would not do: gradients on a GPU come in
    a thread of PyTorch's, and a backward inside a backward has a graph task of its own.
    """
    _engines.append(None)
    try:
        yield
    finally:
        _engines.pop()


class _Divided(torch.autograd.Function):
    """An output's stand-in outside the model.

    A loss that is computed from another output passes its gradient on inside the model. So each gradient is divided once,
    where hooks on both outputs would divide it twice. One function of all outputs would go backward through each of them.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, loop: WatchedLoop, is_apart: bool) -> torch.Tensor:
        ctx.loop = loop
        ctx.set_materialize_grads(False)
        # Like an input of a unit, it may be changed in place, unless another tensor's graph would not know of that: that of
        # an output or of an argument.
        return tensor.detach() if is_apart else tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:  # type: ignore[override]
        return (gradient if gradient is None or _engines else gradient / ctx.loop.accumulation_steps), None, None


def _stand_in(tensor: torch.Tensor, hooks: Hooks, is_apart: bool = True) -> torch.Tensor:
    with torch.enable_grad():  # a model may compute with gradients inside no_grad(), as for forces
        made: torch.Tensor = _Divided.apply(tensor, hooks.loop, is_apart)
    if not made.requires_grad:  # in inference_mode() nothing has a graph
        return tensor
    # Before a hook of the script's, which may fail. It must not lead to `made`: PyTorch's graphs are not collected.
    made.register_hook(functools.partial(_begin_backward, hooks))
    return share_attributes(made, tensor)


def _begin_backward(hooks: Hooks, gradient: torch.Tensor) -> None:
    hooks.begin_backward()


def _memory_of(tensor: torch.Tensor) -> int:
    """A number for its storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # as of a sparse one
        return id(tensor)


@_disable_dynamo  # it sets hooks, which a trace of the engine itself would take
def divided_outputs(output: Any, hooks: Hooks, given: Any) -> Any:
    """A forward's output, with stand-ins for its tensors that need a gradient: in containers and attributes of objects.

    Objects stay those that they are, but tuples and sets are made anew. A tensor where no stand-in can be is a warning, once,
    when a backward of the script's comes to it. ``given``: the forward's arguments.
    """
    if hooks.loop.accumulation_steps == 1:
        return output
    search = Search(output, OBJECTS)
    found = [tensor for tensor in search.tensors if tensor.grad_fn is not None]
    memories = list(map(_memory_of, found))
    users = collections.Counter(memories)
    users.update(_memory_of(tensor) for tensor in (tensors_in(given) if found else ()) if tensor.requires_grad)
    made = {id(tensor): _stand_in(tensor, hooks, users[memory] == 1) for tensor, memory in zip(found, memories)}
    output = search.swapped(lambda tensor: made.get(id(tensor), tensor))
    placed = set(map(id, made.values()))
    for tensor in () if search.is_complete else tensors_in(output):
        if tensor.grad_fn is not None and id(tensor) not in placed:
            tensor.register_hook(functools.partial(_note_undivided, hooks, type(output).__name__))
    return output


def _note_undivided(hooks: Hooks, kind: str, gradient: torch.Tensor) -> None:
    if _engines or hooks.is_undivided_noted:
        return
    hooks.is_undivided_noted = True
    log.warning(
        "engine(...) has returned a %s with a tensor inside an object that takes no other tensor in its place: in a backward of "
        "the script's, as loss.backward(), the gradient of that tensor is not divided by the %d micro-batches of a step. Call "
        "engine.backward(loss), or return the tensor in a tuple, list, dict or dataclass",
        kind,
        hooks.loop.accumulation_steps,
    )
