"""Saves and loads states together with the file beside them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..._errors import StorageError
from .. import ranks
from . import buffers, client
from .states import check_parameters, newest, states_of

if TYPE_CHECKING:
    from ..offloaded import OffloadedModel


def check_trains(offloaded: OffloadedModel) -> None:
    """Raises ValueError for a model of which nothing trains: its checkpoint would be empty."""
    if not any(names for names, _ in offloaded.loop.groups):
        raise ValueError(
            "no parameter of this model trains, and a checkpoint has what trains: engine.save_16bit_model() writes the weights, "
            "and engine.module_state_dict() has them"
        )


def save(folder: str, offloaded: OffloadedModel, content: Callable[[], dict[str, Any]]) -> None:
    """Writes states, buffers and ``content``. Every rank calls it; rank 0 writes what is not the states.

    Raises ValueError where no parameter trains.
    """
    check_trains(offloaded)
    step = int(offloaded.loop.step)
    is_first = ranks.rank() == 0
    packed = ranks.together(
        lambda: client.pack({**content(), "buffers": buffers.copies_of(offloaded.model)}) if is_first else b""
    )
    ranks.together(lambda: client.write(folder, step, packed) if is_first else None)
    offloaded.loop.save_checkpoint(folder)
    ranks.together(lambda: client.finish(folder, step) if is_first else None)


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
    ``take`` takes it when the states are there. ``strict``: buffers must be those of the model.
    """

    def checked() -> tuple[int, dict[str, Any]]:
        found = newest(states_of(folder)) if os.path.isdir(folder) else None
        if found is None:
            return 0, {}  # the extension says what is wrong
        check_parameters(found, offloaded)
        path, saved = client.load(os.path.dirname(found.path), found, keys)
        if "buffers" in saved:
            buffers.check_buffers(path, offloaded.model, saved["buffers"], strict)
        else:
            buffers.warn_of_missing(found.path, offloaded.model)
        check(saved)
        return found.step, saved

    expected, saved = ranks.together(checked)
    step = int(offloaded.loop.load_checkpoint(folder))

    def rest() -> dict[str, Any]:
        if step != expected:
            raise StorageError(f"{folder} holds states of step {step}, and beside them a file of step {expected}")
        buffers.set_buffers(offloaded.model, saved.get("buffers", {}))
        take(saved)
        return saved

    with offloaded.loop.completing(folder):
        return ranks.together(rest)
