"""A unit's inputs in the graph, and the tensors that its forward has made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .containers import CONTAINERS, RECORDS, Search, swapped, tensors_in
from .input_hooks import give_hooks


def with_bases(tensors: Iterable[torch.Tensor], older: Mapping[int, Any] = {}) -> Iterator[torch.Tensor]:
    """Each tensor that needs a gradient, and the tensor that it is a view of: together every way back to a forward.

    ``older``: bases from before the forward by ``id``, each with its graph, which is not that of the forward.

    A caller that changes a view in place makes its graph anew from that of the base, as for a Linear's output of three
    dimensions. A view that an autograd function has returned keeps a graph of its own.
    """
    found = {id(tensor): tensor for tensor in tensors if tensor.requires_grad}
    views = [tensor for tensor in found.values() if tensor._base is not None]
    for view in views:
        _ = view.grad_fn  # PyTorch makes that of a view here after a change by another one, and takes no hook before
        base: Any = view._base
        if base.requires_grad and not base.is_leaf and older.get(id(base)) is not base.grad_fn:
            found[id(base)] = base
    yield from found.values()


def share_attributes(stand_in: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """``stand_in``, with the attributes that a script sets on ``tensor``, now and later."""
    if not is_traceable_wrapper_subclass(tensor):  # whose own tensors are attributes
        stand_in.__dict__ = tensor.__dict__
    return stand_in


class _EndOfBackward(torch.autograd.Function):
    """Its backward runs when the gradients of a unit's inputs are there."""

    @staticmethod
    def forward(ctx: Any, inputs: Inputs, close: Callable[[], None], are_apart: bool, *tensors: torch.Tensor) -> Any:
        ctx.inputs, ctx.close = inputs, close
        ctx.set_materialize_grads(False)  # zeros for an input without a gradient would go on, and 0 * inf is NaN
        # A stand-in may be changed in place: it has the memory and the version of its input, so that PyTorch knows of a
        # change by either side. The graph of another input in that memory would not, so PyTorch's error stays for those.
        return tuple(tensor.detach() for tensor in tensors) if are_apart else tensors

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        ctx.close()
        return (None, None, None, *gradients)


class _View(torch.autograd.Function):
    """A view of an input that a unit returns. PyTorch refuses to change it: the input's own graph would not know of it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:  # type: ignore[override]
        return gradient


def _are_tensors(args: Any, kwargs: Any) -> bool:
    """As of most units: a search through containers takes as long as a tenth of all hooks."""
    return not kwargs and all(isinstance(arg, torch.Tensor) for arg in args)


def _given(args: Any, kwargs: Any) -> Iterable[torch.Tensor]:
    return args if _are_tensors(args, kwargs) else tensors_in((args, kwargs), RECORDS)


class Inputs:
    """The inputs of one forward of a unit. Each one that needs a gradient has a stand-in, which the forward gets."""

    __slots__ = ("_bases", "_known", "_pairs")

    def __init__(self, args: Any, kwargs: Any) -> None:
        self._known = {id(tensor): tensor for tensor in _given(args, kwargs) if tensor.requires_grad}
        bases = [tensor._base for tensor in self._known.values() if tensor._base is not None]
        self._bases = {id(base): base.grad_fn for base in bases}  # of the inputs that are views
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the stand-in: the caller's tensor, and that one

    def mark(self, args: Any, kwargs: Any, close: Callable[[], None]) -> Any:
        """The arguments with stand-ins; None without an input that needs a gradient. ``close``: called in backward, after
        the gradients of all these inputs."""
        search = None if _are_tensors(args, kwargs) else Search((args, kwargs), CONTAINERS)
        inputs = {id(leaf): leaf for leaf in (args if search is None else search.tensors) if leaf.requires_grad}
        if not inputs:
            return None
        bases = {id(tensor if tensor._base is None else tensor._base) for tensor in inputs.values()}
        stand_ins = dict(zip(inputs, _EndOfBackward.apply(self, close, len(bases) == len(inputs), *inputs.values())))
        for key, stand_in in stand_ins.items():
            share_attributes(stand_in, inputs[key])
        self._pairs = {id(stand_in): (inputs[key], stand_in) for key, stand_in in stand_ins.items()}
        if search is None:
            return tuple(stand_ins.get(id(arg), arg) for arg in args), kwargs
        return search.swapped(lambda tensor: stand_ins.get(id(tensor), tensor))

    def finish(self, args: Any, kwargs: Any, output: Any) -> tuple[Any, list[torch.Tensor]]:
        """After the forward: its output, and the tensors whose gradients begin the unit's backward.

        The caller's tensors take the place of their stand-ins again. A change to a stand-in in place becomes part of the graph
        of the caller's tensor. A tensor that the unit has put into a list, a dict or another tensor of the caller is one of
        those whose gradients are awaited.
        """
        pairs, self._pairs = self._pairs, {}
        known, self._known = self._known, {}
        bases, self._bases = self._bases, {}
        made = []
        for tensor, stand_in in pairs.values():
            if self._is_changed(stand_in):
                made.append(self._take_over(tensor, stand_in))
            elif stand_in._backward_hooks or stand_in.retains_grad:
                give_hooks(stand_in, tensor)

        def callers(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in pairs:
                return pairs[id(tensor)][0]
            is_view = tensor._base is not None and id(tensor._base) in pairs
            return share_attributes(_View.apply(tensor), tensor) if is_view else tensor

        if pairs:
            if not _are_tensors(args, kwargs):
                swapped((args, kwargs), lambda tensor: pairs[id(tensor)][0] if id(tensor) in pairs else tensor)
            output = swapped(output, callers)
        given = {id(tensor) for tensor, _ in pairs.values()}
        made += [tensor for tensor in tensors_in(output) if id(tensor) not in given]
        made += [tensor for tensor in _given(args, kwargs) if id(tensor) not in known and id(tensor) not in pairs]
        return output, list(with_bases(made, bases))

    def _is_changed(self, stand_in: torch.Tensor) -> bool:
        # PyTorch refuses to change those that are not apart, which are views.
        return stand_in._base is None and getattr(stand_in.grad_fn, "inputs", None) is not self

    @staticmethod
    def _take_over(tensor: torch.Tensor, stand_in: torch.Tensor) -> torch.Tensor:
        # The values are there already: only the graph changes, and what the unit has saved is not out of date.
        with torch.autograd._unsafe_preserve_version_counter(tensor):  # type: ignore[attr-defined]
            tensor.copy_(stand_in)
        return tensor
