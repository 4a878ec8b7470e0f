"""The files of a checkpoint beside the states: DeepSpeed's folder of a tag, and `latest`."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._errors import StorageError

_CLIENT = "client.pt"
_LATEST = "latest"


def tag_folder(save_dir: str | os.PathLike[str], tag: str, exists: bool = False) -> str:
    """The folder of a tag; it is made, or has to exist."""
    if not os.fspath(save_dir):
        raise ValueError("the folder of checkpoints has an empty name")
    if tag in ("", ".", "..") or "/" in tag:
        raise ValueError(f"a tag is the name of a folder, and {tag!r} is none")
    folder = os.path.join(save_dir, tag)
    if not exists:
        os.makedirs(folder, exist_ok=True)
    elif not os.path.isdir(folder):
        raise FileNotFoundError(2, "there is no checkpoint of this tag", folder)
    return folder


def _replace(path: str, write: Callable[[str], object]) -> None:
    """Writes a file under another name, syncs it and renames it: at any moment the old or the new file is whole."""
    handle, draft = tempfile.mkstemp(dir=os.path.dirname(path), prefix=os.path.basename(path) + ".")
    os.close(handle)
    try:
        write(draft)
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def pack_client(saved: Mapping[str, Any]) -> bytes:
    """The bytes of a client's file. Raises where a value cannot be pickled."""
    packed = io.BytesIO()
    torch.save(dict(saved), packed)
    return packed.getvalue()


def write_client(save_dir: str | os.PathLike[str], tag: str, packed: bytes, is_latest: bool) -> None:
    _replace(os.path.join(save_dir, tag, _CLIENT), lambda path: _write(path, packed))
    if is_latest:
        _replace(os.path.join(save_dir, _LATEST), lambda path: _write(path, tag.encode()))


def load_client(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, _CLIENT)
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=False)
    except FileNotFoundError:
        raise StorageError(f"{folder} is no whole checkpoint: {_CLIENT} is missing") from None
    except Exception as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    return saved


def latest_tag(load_dir: str | os.PathLike[str]) -> str | None:
    try:
        with open(os.path.join(load_dir, _LATEST)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def write_weights(folder: str, name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes weights with torch.save, or as safetensors by the name's ending, where a tied tensor has its first name."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    if not name.endswith(".safetensors"):
        _replace(path, lambda draft: torch.save(dict(weights), draft))
        return
    from safetensors.torch import save_file

    first = {id(tensor): key for key, tensor in reversed(list(weights.items()))}
    once = {key: tensor.contiguous() for key, tensor in weights.items() if first[id(tensor)] == key}
    _replace(path, lambda draft: save_file(once, draft, metadata={"format": "pt"}))


def set_buffers(module: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Copies the saved values of buffers into those that the module has."""
    buffers = dict(module.named_buffers())
    with torch.no_grad():
        for key, value in values.items():
            if key in buffers:
                buffers[key].copy_(value)
