"""The tensors inside a value, as the arguments or the output of a forward, and other tensors in their place."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Set, ValuesView
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import SUPPORTED_NODES

CONTAINERS = 0  # tuples, lists, dicts, deques, and classes that are registered with PyTorch's pytree
RECORDS = 1  # those, and dataclasses, sets and other mappings
OBJECTS = 2  # those, and the attributes of other objects

_DEPTH = 6  # of objects inside one another
_CHANGEABLE = (list, dict, collections.deque)  # a unit may put tensors into its caller's
_WITHOUT_TENSORS = (nn.Module, types.ModuleType, str, bytes, int, float, bool, type(None), torch.dtype, torch.device)
_PLAIN = frozenset(_WITHOUT_TENSORS[2:])
_BUILT_IN = frozenset([tuple, list, dict])  # have no attributes


class Search:
    """Finds the tensors in a value, each once, and puts other ones in their place.

    A part that is there several times is searched once, and stays one object. Parts that fewer objects enclose come first, so
    that a part is not left out for a long way that leads to it too. ``kinds``: where tensors are looked for.
    """

    def __init__(self, value: Any, kinds: int) -> None:
        self.tensors: list[torch.Tensor] = []
        self.is_complete = True  # until swapped() meets a part that takes no other tensors
        self._value, self._kinds = value, kinds
        self._changeable: list[tuple[Iterable[tuple[Any, Any]], Callable[[Any, Any], None]]] = []  # items, what puts one
        # By `id`: a part that is not to be changed, its own parts, and a function that makes such a part of other ones or None.
        self._fixed: dict[int, tuple[Any, list[Any], Callable[[list[Any]], Any]]] = {}
        seen: set[int] = set()  # what has a part keeps it, and its `id`
        level, depth = [value], 0
        while level:
            deeper: list[Any] = []
            while level:
                part = level.pop()
                if type(part) in _PLAIN or id(part) in seen:
                    continue
                seen.add(id(part))
                if isinstance(part, torch.Tensor):
                    self.tensors.append(part)
                elif not isinstance(part, _WITHOUT_TENSORS):
                    attributes = self._attributes(part) if depth < _DEPTH and type(part) not in _BUILT_IN else []
                    level += reversed(self._parts(part, bool(attributes)))
                    deeper += attributes
            level, depth = deeper[::-1], depth + 1

    def _attributes(self, value: Any) -> list[Any]:
        """The dict of an object's attributes, and fields of a dataclass that are not there."""
        is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
        if isinstance(value, (tuple, Set)) or not (self._kinds == OBJECTS or (self._kinds == RECORDS and is_record)):
            return []
        found: Any = {} if callable(value) else _dict_of(value)
        names = [field.name for field in dataclasses.fields(value) if field.name not in found] if is_record else []
        slots = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
        if slots:
            self._changeable.append((slots, functools.partial(object.__setattr__, value)))
        return ([found] if found else []) + [part for _, part in slots]

    def _parts(self, value: Any, has_attributes: bool) -> list[Any]:
        """The parts of a container."""
        if isinstance(value, _CHANGEABLE):
            items = list(value.items() if isinstance(value, dict) else enumerate(value))
            self._changeable.append((items, functools.partial(_put, value)))
            return [part for _, part in items] + self._keys(value)
        make: Callable[[list[Any]], Any] = _nothing
        if isinstance(value, tuple) or (self._kinds == OBJECTS and isinstance(value, (set, frozenset))):
            parts, make = list(value), functools.partial(_made_as, value)
        elif has_attributes:  # as of a UserDict: what it has is there
            return []
        elif self._kinds and isinstance(value, (Mapping, Set, ValuesView)):
            parts = list(value.values() if isinstance(value, Mapping) else value)
        elif type(value) in SUPPORTED_NODES:
            node = SUPPORTED_NODES[type(value)]
            parts, context = node.flatten_fn(value)
            make = functools.partial(_unflattened, node.unflatten_fn, context)
        else:
            return []
        self._fixed[id(value)] = value, parts, make
        return parts

    def _keys(self, value: Any) -> list[Any]:
        """Tensors that are the keys of a dict, as a part of it."""
        is_searched = self._kinds and isinstance(value, dict)
        return [value.keys()] if is_searched and any(isinstance(key, torch.Tensor) for key in value) else []

    def swapped(self, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """The value with other tensors. Lists, dicts and other objects stay what they are; tuples and sets are made anew."""
        new: dict[int, Any] = {}  # by the `id` of what was there
        for tensor in self.tensors:
            other = swap(tensor)
            if other is not tensor:
                new[id(tensor)] = other
        if new:
            self._make_fixed(new)
        for items, put_part in self._changeable if new else ():
            for key, part in items:
                if id(part) in new:
                    put_part(key, new[id(part)])
        return new.get(id(self._value), self._value)

    def _make_fixed(self, new: dict[int, Any]) -> None:
        """Parts that are not to be changed, each after its own parts. No recursion: it has a limit."""
        begun: set[int] = set()
        pending = list(self._fixed)
        while pending:
            _, parts, make = self._fixed[pending[-1]]
            if pending[-1] not in begun:
                begun.add(pending[-1])
                pending += [id(part) for part in parts if id(part) in self._fixed and id(part) not in begun]
                continue
            done = pending.pop()
            if done not in new and any(id(part) in new for part in parts):
                made = make([new.get(id(part), part) for part in parts])
                self.is_complete &= made is not None
                if made is not None:
                    new[done] = made


def tensors_in(value: Any, kinds: int = OBJECTS) -> list[torch.Tensor]:
    """The tensors in a value, each once."""
    return [value] if isinstance(value, torch.Tensor) else Search(value, kinds).tensors


def swapped(value: Any, swap: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A value with other tensors in its containers: see :meth:`Search.swapped`."""
    return swap(value) if isinstance(value, torch.Tensor) else Search(value, CONTAINERS).swapped(swap)


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")  # a class may find other things by its attributes
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _nothing(parts: list[Any]) -> None:
    return None


def _unflattened(unflatten: Callable[[Any, Any], Any], context: Any, parts: list[Any]) -> Any:
    return unflatten(parts, context)


def _made_as(value: Any, parts: list[Any]) -> Any:
    """``parts`` in a tuple or a set of the kind of ``value``; None where its class makes none of them."""
    kind: Any = type(value)
    try:
        if not isinstance(value, tuple) or kind.__module__ == "torch.return_types":
            return kind(parts)
        new = tuple.__new__(kind, parts)  # its class may take other arguments
    except Exception:
        return None
    if hasattr(new, "__dict__"):
        vars(new).update(vars(value))
    return new


def _put(container: Any, key: Any, new: Any) -> None:
    """``container[key] = new``, of a list, dict or deque, also where its class refuses."""
    try:
        container[key] = new
    except Exception:  # a class that is not to be changed; a unit's gets the caller's tensor back after the forward
        kind: Any = next(kind for kind in _CHANGEABLE if isinstance(container, kind))
        kind.__setitem__(container, key, new)
