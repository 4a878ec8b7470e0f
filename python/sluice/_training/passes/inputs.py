"""A unit's inputs in the graph, and the tensors that its forward has made."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .input_hooks import give_hooks

_DEPTH = 6  # of containers that are searched for tensors
_CHANGEABLE = (list, dict, collections.deque)  # a unit may put tensors into its caller's
_WITHOUT_TENSORS = (nn.Module, types.ModuleType, str, bytes, int, float, bool, type(None), torch.dtype, torch.device)


def tensors_in(value: Any, in_objects: bool = True, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """The tensors in tuples, lists, dicts and dataclasses; with ``in_objects`` also in the attributes of other objects."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 0 or isinstance(value, _WITHOUT_TENSORS):
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (tuple, list, set, collections.deque)):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, part.name, None) for part in dataclasses.fields(value)]
    elif in_objects and hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        parts = list(vars(value).values())
    for part in parts:
        yield from tensors_in(part, in_objects, depth - 1)


class _Walk:
    """Swaps the tensors of one value. A tensor or a container that is in it twice is swapped once: it stays one object.

    ``in_objects``: also in sets, dataclasses and the attributes of other objects.
    """

    __slots__ = ("_depth", "_in_objects", "_known", "_swap")

    def __init__(self, swap: Callable[[torch.Tensor], torch.Tensor], in_objects: bool) -> None:
        self._swap, self._in_objects = swap, in_objects
        self._known: dict[int, tuple[Any, Any]] = {}  # by `id`: a part, and that in its place
        self._depth = _DEPTH

    def swapped(self, value: Any) -> Any:
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        new = value
        if isinstance(value, torch.Tensor):
            new = self._swap(value)
        elif isinstance(value, _CHANGEABLE):
            self._known[id(value)] = value, value  # it may contain itself
            self._change(value.items() if isinstance(value, dict) else enumerate(value), functools.partial(put, value))
            if self._in_objects:
                self._change_object(value)
        elif isinstance(value, _WITHOUT_TENSORS):
            return value
        elif isinstance(value, tuple) or (self._in_objects and isinstance(value, (set, frozenset))):
            parts = [self.swapped(part) for part in value]
            if any(after is not before for after, before in zip(parts, value)):
                new = _made_as(value, parts)
        elif not (self._in_objects and self._change_object(value)):
            new = self._of_registered(value)
        self._known[id(value)] = value, new
        return new

    def _change(self, parts: Iterable[tuple[Any, Any]], put_part: Callable[[Any, Any], None]) -> None:
        for key, part in list(parts):
            new = self.swapped(part)
            if new is not part:
                put_part(key, new)

    def _change_object(self, value: Any) -> bool:
        """Swaps the tensors in attributes and a dataclass's fields. Returns whether there are any."""
        attributes: Any = {} if callable(value) else getattr(value, "__dict__", {})
        fields = dataclasses.fields(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else ()
        if self._depth == 0 or not isinstance(attributes, dict) or not (attributes or fields):
            return False
        self._known[id(value)] = value, value
        self._depth -= 1
        self._change(attributes.items(), attributes.__setitem__)  # also where the class refuses
        others = [field.name for field in fields if field.name not in attributes and hasattr(value, field.name)]
        self._change(((name, getattr(value, name)) for name in others), functools.partial(object.__setattr__, value))
        self._depth += 1
        return True

    def _of_registered(self, value: Any) -> Any:
        """``value`` made anew, if PyTorch knows how."""
        parts, spec = tree_flatten(value, is_leaf=lambda part: part is not value)
        if len(parts) == 1 and parts[0] is value:
            return value
        new_parts = [self.swapped(part) for part in parts]
        return value if all(new is part for new, part in zip(new_parts, parts)) else tree_unflatten(new_parts, spec)


def swapped(value: Any, swap: Callable[[torch.Tensor], torch.Tensor], in_objects: bool = False) -> Any:
    """``value`` with other tensors. Lists and dicts stay the objects that they are; tuples and their like are made anew.

    With ``in_objects`` dataclasses and other objects are searched too, and stay the objects that they are; sets are made anew.
    """
    if isinstance(value, torch.Tensor):
        return swap(value)
    return _Walk(swap, in_objects).swapped(value)


def _made_as(value: Any, parts: list[Any]) -> Any:
    """``parts`` in a tuple or a set of the kind of ``value``, and ``value`` itself where its class makes none of them."""
    kind: Any = type(value)
    try:
        if not isinstance(value, tuple) or kind.__module__ == "torch.return_types":
            return kind(parts)
        new = tuple.__new__(kind, parts)  # its class may take other arguments
    except TypeError:
        return value
    if hasattr(new, "__dict__"):
        vars(new).update(vars(value))
    return new


def put(container: Any, key: Any, new: Any) -> None:
    """``container[key] = new``, of a list, dict or deque, also where its class refuses."""
    try:
        container[key] = new
    except TypeError:  # a class that is not to be changed; it gets the caller's tensor back after the forward
        kind: Any = next(kind for kind in _CHANGEABLE if isinstance(container, kind))
        kind.__setitem__(container, key, new)


def swappable(value: Any, in_objects: bool = False) -> list[torch.Tensor]:
    """The tensors that :func:`swapped` finds, each once."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    swapped(value, note, in_objects)
    return found


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
    return args if _are_tensors(args, kwargs) else tensors_in((args, kwargs), in_objects=False)


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
        leaves: list[torch.Tensor] = list(args) if _are_tensors(args, kwargs) else swappable((args, kwargs))
        inputs = {id(leaf): leaf for leaf in leaves if leaf.requires_grad}
        if not inputs:
            return None
        bases = {id(tensor if tensor._base is None else tensor._base) for tensor in inputs.values()}
        stand_ins = dict(zip(inputs, _EndOfBackward.apply(self, close, len(bases) == len(inputs), *inputs.values())))
        self._pairs = {id(stand_in): (inputs[key], stand_in) for key, stand_in in stand_ins.items()}
        if _are_tensors(args, kwargs):
            return tuple(stand_ins.get(id(arg), arg) for arg in args), kwargs
        return swapped((args, kwargs), lambda tensor: stand_ins.get(id(tensor), tensor))

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
            return _View.apply(tensor) if tensor._base is not None and id(tensor._base) in pairs else tensor

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
