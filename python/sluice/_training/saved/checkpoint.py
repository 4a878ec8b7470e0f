"""Saves and loads states together with the file beside them, or the weights of states without the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..._errors import StorageError
from .. import ranks
from ..engine_module import outside_budget
from ..start.agreement import check_agreement
from ..units import is_kept
from . import buffers, client, extra_states
from .states import State, check_ours, check_parameters, check_weights, newest, read, states_of
from .weights import weights_of

if TYPE_CHECKING:
    from ..offloaded import OffloadedModel


def trains(offloaded: OffloadedModel) -> bool:
    """Whether any parameter does."""
    return any(names for names, _ in offloaded.loop.groups)


def check_trains(offloaded: OffloadedModel) -> None:
    """Raises ValueError for a model of which nothing trains: its checkpoint would be empty."""
    if not trains(offloaded):
        raise ValueError(
            "no parameter of this model trains, and a checkpoint has what trains: engine.save_16bit_model() writes the weights, "
            "and engine.module_state_dict() has them"
        )


@outside_budget()
def save(folder: str, offloaded: OffloadedModel, content: Callable[[], dict[str, Any]]) -> None:
    """Writes states, buffers and ``content``. Every rank calls it; rank 0 writes what is not the states.

    Raises ValueError where no parameter trains, and for one that came into the model later and has no states.
    """
    check_trains(offloaded)
    step = int(offloaded.loop.step)
    is_first = ranks.rank() == 0

    def checked() -> bytes:
        offloaded.check_parameters()
        return client.pack({**content(), **_of_model(offloaded)}) if is_first else b""

    packed = ranks.together(checked)
    path = ranks.together(lambda: client.write(folder, step, packed) if is_first else "")
    offloaded.loop.save_checkpoint(folder)
    ranks.together(lambda: client.finish(folder, step, path) if is_first else None)


def _of_model(offloaded: OffloadedModel) -> dict[str, Any]:
    """Beside the weights: buffers, extra states of modules, and names of parameters: those without elements and their shapes,
    frozen ones, and further ones of weights with the one that states know."""
    first = {parameter: name for name, parameter in offloaded.parameters.items()}
    named = list(offloaded.model.named_parameters(remove_duplicate=False))
    return {
        "buffers": buffers.copies_of(offloaded.model),
        "extra_states": extra_states.states_of(offloaded.model),
        "no_elements": {
            name: list(parameter.shape) for name, parameter in named if parameter.requires_grad and is_kept(parameter)
        },
        "frozen": [name for name, parameter in offloaded.model.named_parameters() if not parameter.requires_grad],
        "tied": {name: first[parameter] for name, parameter in named if first.get(parameter, name) != name},
    }


def _beside(state: State, offloaded: OffloadedModel, keys: Sequence[str], strict: bool) -> dict[str, Any]:
    """The content of the file beside a state, with buffers and extra states that this model can take."""
    path, saved = client.load(os.path.dirname(state.path), state, keys)
    if "buffers" in saved:
        buffers.check_buffers(path, offloaded.model, saved["buffers"], strict)
    if "extra_states" in saved and strict:
        extra_states.check_states(path, offloaded.model, saved["extra_states"])
    warn_of_missing(state.path, offloaded.model, saved)
    return saved


def warn_of_missing(where: str, model: nn.Module, saved: Collection[str] = ()) -> None:
    """Logs that a model goes on without what its modules keep beside weights. ``saved``: which kinds are there."""
    if "buffers" not in saved:
        buffers.warn_of_missing(where, model)
    if "extra_states" not in saved:
        extra_states.warn_of_missing(where, model)


def _set_beside(offloaded: OffloadedModel, saved: dict[str, Any]) -> None:
    buffers.set_buffers(offloaded.model, saved.get("buffers", {}))
    extra_states.set_states(offloaded.model, saved.get("extra_states", {}))


@outside_budget()
def load(
    folder: str,
    offloaded: OffloadedModel,
    *,
    keys: Sequence[str] = (),
    strict: bool = True,
    check: Callable[[dict[str, Any]], None] = lambda saved: None,
    take: Callable[[dict[str, Any]], None] = lambda saved: None,
) -> dict[str, Any]:
    """Loads the newest states of a folder with the file beside them. Returns its content. Every rank calls it.

    ``keys``: which the content must have. ``check`` raises for a content that cannot be taken, before anything is loaded;
    ``take`` takes it when the states are there. ``strict``: buffers and extra states must be those of the model.
    """

    def checked() -> tuple[State | None, dict[str, Any]]:
        offloaded.check_hidden("a checkpoint is loaded")
        check_ours(folder)
        found = newest(states_of(folder)) if os.path.isdir(folder) else None
        if found is None:
            return None, {}  # the extension says what is wrong
        check_parameters(found, offloaded)
        saved = _beside(found, offloaded, keys, strict)
        check(saved)
        return found, saved

    expected, saved = ranks.together(checked)
    offloaded.loop.load_checkpoint(folder)

    def rest() -> dict[str, Any]:
        _check_loaded(offloaded.loop.loaded_from, expected)
        _set_beside(offloaded, saved)
        take(saved)
        return saved

    with offloaded.loop.completing(folder):
        return ranks.together(rest)


def _check_loaded(path: str, expected: State | None) -> None:
    """Raises StorageError where the states in ``path``, which were loaded, are not those that the file beside them is of."""
    loaded = read(os.path.normpath(path))
    if expected is None or loaded is None or loaded.key != expected.key:
        of = "of none" if expected is None else f"of those that were in {expected.path} before"
        raise StorageError(
            f"the states in {path} were loaded, and the file beside them is {of}: another program has changed the folder meanwhile; "
            "load again"
        )


def find(folder: str) -> State:
    """The newest states of a folder. Raises StorageError where there are none that can be read, FileNotFoundError."""
    check_ours(folder)
    found = newest(states_of(folder))
    if found is None:
        raise StorageError(f"{folder} has no checkpoint that can be read: there is no whole folder step-STEP in it")
    return found


@outside_budget()
def load_weights(
    folder: str,
    offloaded: OffloadedModel,
    *,
    keys: Sequence[str],
    strict: bool,
    check: Callable[[dict[str, Any]], None],
    take: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """As :func:`load`, but of the states the weights only. Those of this model, and its steps, stay.

    ``strict``: parameters must be those of the model, too. Frozen parameters of the model take weights as others do.
    """

    def checked() -> tuple[State, list[str], dict[str, Any]]:
        offloaded.check_hidden("a checkpoint is loaded")
        found = find(folder)
        saved = _beside(found, offloaded, keys, strict)
        names = check_weights(found, offloaded, saved.get("frozen"), strict)
        check(saved)
        return found, names, saved

    found, names, saved = ranks.together(checked)
    check_agreement({"the states of load_checkpoint": f"{found.path}, {found.key}", "its weights": names})
    values = ranks.together(lambda: weights_of(found) if ranks.rank() == 0 else {})
    offloaded.loop.forget_gradients()

    def rest() -> dict[str, Any]:
        _set_beside(offloaded, saved)
        take(saved)
        return saved

    with offloaded.loop.completing(folder):
        for of_unit in offloaded.by_unit(names):
            ones = {
                name: values[name] if name in values else torch.empty(found.shapes[name], dtype=torch.float32, device="cpu")
                for name in of_unit
            }
            ranks.share(list(ones.values()))
            offloaded.loop.set_parameters(ones)
        return ranks.together(rest)
