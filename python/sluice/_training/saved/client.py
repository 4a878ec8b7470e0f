"""The file of a checkpoint beside its states: client-STEP-KEY.pt, with the key of the states that it belongs to.

It is written before the states, so a save that fails midway leaves the old states with their old file, or the new ones
with theirs. Until its states are whole it has a name with ``after`` and the keys of the states of that step that were there
before: it belongs to another one.
"""

from __future__ import annotations

import fnmatch
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..._errors import StorageError
from .files import make_folder, write_bytes
from .states import State, folders_of, newest, states_of

_LONGEST_NAME = 230  # of 255 bytes, beside the end of a name that is not final
_OF_ALL_STEPS = "client.pt"  # of versions that wrote it after the states


def pack(saved: Mapping[str, Any]) -> bytes:
    """The bytes of a client's file, with checksums of all its parts. Raises where a value cannot be pickled."""
    packed = io.BytesIO()
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        torch.save(dict(saved), packed)
    finally:
        torch.serialization.set_crc32_options(before)
    return packed.getvalue()


def _own(folder: str, state: State) -> str:
    return os.path.join(folder, f"client-{state.step:08d}-{state.key}.pt")


def _files(folder: str, pattern: str) -> list[str]:
    return [os.path.join(folder, name) for name in fnmatch.filter(os.listdir(folder), pattern)]


def _unfinished(folder: str, step: int) -> list[str]:
    """Files of saves of this step whose states may be there, or not."""
    return _files(folder, f"client-{step:08d}.after*.pt")


def _is_of(path: str, state: State) -> bool:
    return state.key not in path.rpartition(".after")[2]


def _path_of(folder: str, state: State) -> str:
    """The file of these states, which may be missing."""
    own = _own(folder, state)
    if os.path.exists(own):
        return own
    found = [path for path in _unfinished(folder, state.step) if _is_of(path, state)]
    return found[0] if found else os.path.join(folder, _OF_ALL_STEPS)


def _settle(folder: str) -> None:
    """After a save, or one that failed: gives files their names, and removes those without states.

    Files of a step stay while a folder of it is there that is no whole state: it may be mended.
    """
    states = states_of(folder)
    whole = {os.path.normpath(state.path) for state in states}
    damaged = [os.path.basename(path) for path in folders_of(folder) if os.path.normpath(path) not in whole]
    for_all = os.path.join(folder, _OF_ALL_STEPS)
    for state in states:
        path = _path_of(folder, state)
        if path != for_all:
            os.replace(path, _own(folder, state))
    kept = {_own(folder, state) for state in states}
    if not all(map(os.path.exists, kept)):
        kept.add(for_all)
    for name in damaged:
        step = name.removeprefix("step-").partition(".")[0]
        kept.update(_files(folder, f"client-{step}[-.]*.pt"))
    for path in {*_files(folder, "client-*.pt"), *_files(folder, _OF_ALL_STEPS)} - kept:
        os.unlink(path)


def write(folder: str, step: int, packed: bytes) -> str:
    """Before the states of this step are written. Returns the file's path until then. Raises StorageError where it has too many states."""
    make_folder(folder)
    _settle(folder)
    others = [state for state in states_of(folder) if state.step == step]
    before = "".join(f"-{state.key}" for state in others)
    path = os.path.join(folder, f"client-{step:08d}.after{before}.pt")
    if len(os.path.basename(path)) > _LONGEST_NAME:
        raise StorageError(
            f"{folder} has states of step {step} of other runs, {len(others)} in number, and no file's name holds the keys of more: remove "
            "those that you do not need, or save in another folder"
        )
    write_bytes(path, packed)
    return path


def finish(folder: str, step: int, path: str) -> None:
    """After the states of this step are whole; ``path`` is of :func:`write`.

    States that are saved twice within a second have equal keys. Raises StorageError where the states are not there.
    """
    states = [state for state in states_of(folder) if state.step == step]
    saved = newest([state for state in states if _is_of(path, state)] or states)
    if saved is None:
        raise StorageError(
            f"{folder} has no whole states of step {step}, which were just saved there: somebody changed them, or the drive did not "
            f"keep them. {path}, the file beside them, is left; save again, in another folder if this one fails again"
        )
    os.replace(path, _own(folder, saved))
    _settle(folder)


def load(folder: str, state: State, keys: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Path and content of the file that belongs to these states. Raises StorageError where it has not all ``keys``.

    Without ``keys`` the file may be missing: earlier versions wrote states alone.
    """
    path = _path_of(folder, state)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        if not keys:
            return path, {}
        raise StorageError(f"{state.path} is no whole checkpoint: {_own(folder, state)} is missing") from None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            damaged = parts.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of its part {damaged} differs")
        saved: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except Exception as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    missing = [key for key in keys if key not in saved]
    if missing:
        raise StorageError(
            f"{path} has no {missing[0]}: sluice.offload has written it, whose optimizer loads it. load_module_only=True of an engine "
            "takes its weights"
        )
    counters = saved.get("counters", {})
    step = counters.get("global_steps", state.step) - counters.get("steps_before", 0)
    if step != state.step:
        raise StorageError(
            f"{path} is of step {step}, and the states in {state.path} are of step {state.step}: a save was interrupted, or a "
            "step before it; load another checkpoint"
        )
    return path, saved
