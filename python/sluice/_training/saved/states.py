"""The states in a folder of checkpoints, as far as their manifests say what they are. The extension reads the rest."""

from __future__ import annotations

import json
import os
import re
import zlib
from typing import TYPE_CHECKING, NamedTuple

from ..._errors import StorageError

if TYPE_CHECKING:
    from ..offloaded import OffloadedModel

_FOLDER = re.compile(r"step-\d+(\.\d+)?$")  # a draft has another ending


class State(NamedTuple):
    """``order``: place in the ``line`` of its run. ``key``: of its manifest's bytes. ``shapes``: of parameters, by name."""

    path: str
    step: int
    line: str
    order: int
    saved_at: int
    key: str
    shapes: dict[str, list[int]]


def _read(path: str) -> State | None:
    """None for a folder that cannot be read: the extension says why when it is asked to load."""
    try:
        ranks = sorted(name for name in os.listdir(path) if name.startswith("rank0-of-"))
        whole = os.path.join(path, "ranks.json" if ranks else "manifest.json")
        with open(whole, "rb") as file:
            data = key = file.read()
        if ranks:
            with open(os.path.join(path, ranks[0], "manifest.json"), "rb") as file:
                data = file.read()
        # The last line is the checksum.
        saved = json.loads(json.loads(data[: data.rstrip().rfind(b"\n")])["metadata"])
        shapes = {param["name"]: param["shape"] for unit in saved["units"] for param in unit["params"]}
        return State(
            path, saved["step"], saved["line"], saved["order"], saved["saved_at"], f"{zlib.crc32(key):08x}", shapes
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def states_of(folder: str) -> list[State]:
    """Those that can be read, in the order of the extension. A folder that is a state itself is the only one."""
    own = _read(os.path.normpath(folder))
    if own is not None:
        return [own]
    found = [_read(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if _FOLDER.match(name)]
    return sorted((state for state in found if state is not None), key=lambda state: (state.step, state.order))


def newest(states: list[State]) -> State | None:
    """The one that the extension loads: the last of the line that was saved last (docs/durability.md)."""
    if not states:
        return None
    last = max(states, key=lambda state: (state.saved_at, state.order))
    return max((state for state in states if state.line == last.line), key=lambda state: (state.order, state.saved_at))


def check_parameters(state: State, offloaded: OffloadedModel) -> None:
    """Raises StorageError for the first parameter that trains and is not as in the state."""
    trained = [name for names, _ in offloaded.loop.groups for name in names]
    here = {name: list(offloaded.parameters[name].ds_shape) for name in trained}  # type: ignore[attr-defined]
    for name in [*here, *state.shapes]:
        mine, saved = here.get(name), state.shapes.get(name)
        if mine == saved:
            continue
        if mine is None:
            difference = f"it has parameter {name} of shape {saved}, which this model does not have or train"
        elif saved is None:
            difference = f"it has no parameter {name} of shape {mine}, which this model trains"
        else:
            difference = f"its parameter {name} has shape {saved}, and this model's has {mine}"
        raise StorageError(f"{state.path} is of another model: {difference}; load it into the model that it was saved from")
