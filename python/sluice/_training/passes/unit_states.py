"""A unit in the passes, and each of its forwards."""

from __future__ import annotations

import weakref

from ..units import Unit
from .inputs import Inputs
from .writes import Writes


class Call:
    """One forward of a unit, from the first gradient of its outputs to the gradients of its inputs."""

    __slots__ = ("__weakref__", "has_entered", "inputs", "is_open", "state", "weights_version", "writes_before")

    def __init__(self, state: State, weights_version: int) -> None:
        self.state = state
        self.weights_version = weights_version
        self.is_open = False
        self.has_entered = not state.is_held
        self.inputs: Inputs | None = None  # in a forward with gradients
        self.writes_before: list[int] = []


class State:
    """A unit in the passes."""

    __slots__ = (
        *("awaited", "entered", "has_gradients", "index", "is_borrowed", "is_held", "is_noted", "name", "open_calls", "parameters", "writes", "writes_before"),
    )

    def __init__(self, index: int, unit: Unit, writes: Writes, only_computes: bool) -> None:
        self.index = index
        self.name = unit.name
        self.parameters = [] if only_computes else [parameter for _, parameter in unit.params]
        self.writes = writes
        self.writes_before: list[int] = []  # in the backward that is open
        self.entered: list[Call | None] = []  # forwards in progress; None: inside the unit's own backward
        self.open_calls = 0  # in backward
        self.has_gradients = False  # the backward that is open has some of its parameters
        self.awaited: weakref.WeakSet[Call] = weakref.WeakSet()  # calls in graphs that have had no backward
        self.is_borrowed = False  # another module's forward uses its parameters
        self.is_held = False  # entered for several forwards
        self.is_noted = False  # a line of the log says that it is borrowed
