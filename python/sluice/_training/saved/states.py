"""The states in a folder of checkpoints, as far as their manifests say what they are. The extension reads the rest."""

from __future__ import annotations

import json
import logging
import os
import re
import zlib
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from ..._errors import StorageError
from .. import ranks

if TYPE_CHECKING:
    from ..offloaded import OffloadedModel

log = logging.getLogger("sluice")

_DEEPSPEEDS = ("_model_states.pt", "_optim_states.pt")
_FOLDER = re.compile(r"step-\d+(?:\.(\d+))?$")  # a draft has another ending


class State(NamedTuple):
    """``order``: place in the ``line`` of its run. ``saved_at``: nanoseconds since 1970. ``number``: in the folder's name, of
    several of one step. ``key``: of its manifest's bytes. ``shapes``: of parameters, by name."""

    path: str
    step: int
    line: str
    order: int
    saved_at: int
    number: int
    key: str
    shapes: dict[str, list[int]]


def read(path: str) -> State | None:
    """None for a folder that is no whole state: the extension says why when it is asked to load.

    Raises OSError where a file that is there cannot be read: its state may be whole.
    """
    try:
        parts = sorted(name for name in os.listdir(path) if name.startswith("rank0-of-"))
        whole = os.path.join(path, "ranks.json" if parts else "manifest.json")
        with open(whole, "rb") as file:
            data = key = file.read()
        if parts:
            with open(os.path.join(path, parts[0], "manifest.json"), "rb") as file:
                data = file.read()
        # The last line is the checksum.
        saved = json.loads(json.loads(data[: data.rstrip().rfind(b"\n")])["metadata"])
        shapes = {param["name"]: param["shape"] for unit in saved["units"] for param in unit["params"]}
        # Older versions wrote whole seconds.
        saved_at = saved["saved_at"] * 10**9 + saved.get("saved_at_ns", 10**9 - 1)
        named = _FOLDER.match(os.path.basename(path))
        number = int(named.group(1) or 1) if named else 1
        return State(path, saved["step"], saved["line"], saved["order"], saved_at, number, f"{zlib.crc32(key):08x}", shapes)
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None


def folders_of(folder: str) -> list[str]:
    """Paths of the folders that have names of states, whole or not."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if _FOLDER.match(name)]


def states_of(folder: str) -> list[State]:
    """Those that are whole, in the order of the extension. A folder that is a state itself is the only one.

    Raises OSError where a file of one cannot be read.
    """
    own = read(os.path.normpath(folder))
    if own is not None:
        return [own]
    found = map(read, folders_of(folder))
    return sorted((state for state in found if state is not None), key=lambda state: (state.step, state.order))


def newest(states: list[State]) -> State | None:
    """The one that the extension loads: the last of the line that was saved last (docs/durability.md).

    Its rules are in engine/models/src/states/checkpoints.cpp, too.
    """
    if not states:
        return None
    last = max(states, key=lambda state: (state.saved_at, state.number, state.order))
    of_line = (state for state in states if state.line == last.line)
    return max(of_line, key=lambda state: (state.order, state.saved_at, state.number))


def check_ours(folder: str) -> None:
    """Raises StorageError for a folder with files of DeepSpeed's and no state."""
    theirs = [name for name in sorted(os.listdir(folder)) if name.endswith(_DEEPSPEEDS)] if os.path.isdir(folder) else []
    if theirs and not states_of(folder):
        raise StorageError(
            f"{folder} is a checkpoint of DeepSpeed's ({theirs[0]}), which Sluice does not read: the zero_to_fp32.py beside it writes its "
            "weights, for load_state_dict() of a model before it is given to sluice.initialize"
        )


def check_parameters(state: State, offloaded: OffloadedModel) -> None:
    """Raises StorageError for the first parameter that trains and is not as in the state."""
    trained = [name for names, _ in offloaded.loop.groups for name in names]
    here = {name: _shape(offloaded, name) for name in trained}
    for name in [*here, *state.shapes]:
        mine, saved = here.get(name), state.shapes.get(name)
        if mine == saved:
            continue
        if mine is None and name in offloaded.parameters:
            difference = f"it trained parameter {name}, which is frozen in this model"
        elif mine is None:
            difference = f"it has parameter {name} of shape {saved}, which this model does not have"
        elif saved is None:
            difference = f"it has no parameter {name} of shape {mine}, which this model trains"
        else:
            difference = f"its parameter {name} has shape {saved}, and this model's has {mine}"
        raise StorageError(
            f"{state.path} is of another model, or of one that trains other parameters: {difference}. Load it into the model that it was "
            "saved from, or load its weights without states: load_checkpoint(..., load_module_only=True) of an engine"
        )


def check_weights(state: State, offloaded: OffloadedModel, frozen: Collection[str] | None, strict: bool) -> list[str]:
    """Names of the weights that the state and the model have, in the order of the state.

    ``frozen``: parameters of the saved model that did not train, which come from the model; None: not known. Raises
    StorageError for weights of another shape, for nothing in common and, with ``strict``, for those that one side lacks.
    """
    both = [name for name in state.shapes if name in offloaded.parameters]
    for name in both:
        if state.shapes[name] != _shape(offloaded, name):
            raise StorageError(
                f"{state.path} is of another model: its parameter {name} has shape {state.shapes[name]}, and this model's has "
                f"{_shape(offloaded, name)}"
            )
    added = [name for name in state.shapes if name not in offloaded.parameters]
    missing = [
        name
        for name, parameter in offloaded.parameters.items()
        if name not in state.shapes
        and (parameter.requires_grad and not offloaded.only_computes if frozen is None else name not in frozen)
    ]
    if both and not missing and not added:
        return both
    sides = [f"does not have {missing[0]} ({len(missing)} such)"] if missing else []
    sides += [f"has {added[0]}, which the model does not have ({len(added)} such)"] if added else []
    found = f"{state.path} has other parameters than the model: it {' and '.join(sides)}"
    if strict or not both:
        raise StorageError(f"{found}; load_module_strict=False of an engine loads those that both have" if both else found)
    if ranks.rank() == 0:
        log.warning("%s; these are left as they are", found)
    return both


def _shape(offloaded: OffloadedModel, name: str) -> list[int]:
    return list(offloaded.parameters[name].ds_shape)  # type: ignore[attr-defined]
