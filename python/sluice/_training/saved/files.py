"""The folder of a tag, `latest`, and files of weights, each whole at any moment."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Mapping

import torch

from ..._errors import StorageError

_LATEST = "latest"


def tag_folder(save_dir: str | os.PathLike[str], tag: str, exists: bool = False) -> str:
    """The folder of a tag; it is made, or has to exist."""
    if not os.fspath(save_dir):
        raise ValueError("the folder of checkpoints has an empty name")
    if tag in ("", ".", "..") or "/" in tag:
        raise ValueError(f"a tag is the name of a folder, and {tag!r} is none")
    if not exists and tag != tag.strip():
        raise ValueError(
            f"the tag {tag!r} begins or ends with a blank, which the file `{_LATEST}` does not keep: choose one without"
        )
    if not exists and tag == _LATEST:
        raise ValueError(f"`{_LATEST}` is the file that names the newest checkpoint: choose another tag")
    folder = os.path.join(save_dir, tag)
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the path of a checkpoint is UTF-8, and {folder!a} is not: choose another folder or tag") from None
    if not exists:
        make_folder(folder)
    elif not os.path.isdir(folder):
        raise FileNotFoundError(2, "there is no checkpoint of this tag", folder)
    return folder


def make_folder(folder: str) -> None:
    """With its parents. Their names survive loss of power: else what is written there could be out of reach."""
    parent = os.path.dirname(os.path.abspath(folder))
    if os.path.isdir(folder):
        return
    make_folder(parent)
    os.makedirs(folder, exist_ok=True)
    _sync_names(parent)


def _sync_names(folder: str) -> None:
    """Of a folder that may not be listed, or whose file system has no sync of folders, nothing can be synced."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTSUP):
            return
        raise OSError(error.errno, f"cannot sync, {error.strerror}", folder) from error
    finally:
        os.close(handle)


def replace(path: str, write: Callable[[str], object]) -> None:
    """Writes a file under another name, syncs it and renames it: at any moment the old or the new file is whole.

    The new one survives loss of power when this returns. Raises OSError with the path: a full disk has no other place to say
    which file it was.
    """
    draft = f"{path}.{secrets.token_hex(4)}"
    # As open() makes files, by the process's umask: others may read a checkpoint that it lets them read.
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    try:
        os.close(handle)
        write(draft)
        os.chmod(draft, mode)  # safetensors puts a file of its own there
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        os.unlink(draft)
        # torch.save hides the error of its file behind one about its own positions.
        cause = error if isinstance(error, OSError) else error.__context__
        if isinstance(cause, OSError):
            raise OSError(cause.errno, f"cannot write, {cause.strerror}", path) from error
        raise
    _sync_names(os.path.dirname(os.path.abspath(path)))


def write_bytes(path: str, data: bytes) -> None:
    """Replaces the file as a whole: a crash leaves the old or the new one."""

    def write(draft: str) -> None:
        with open(draft, "wb") as file:
            file.write(data)

    replace(path, write)


def set_latest(save_dir: str | os.PathLike[str], tag: str) -> None:
    """Makes `latest` name the tag, as :func:`write_bytes` does."""
    write_bytes(os.path.join(save_dir, _LATEST), tag.encode())


def latest_tag(load_dir: str | os.PathLike[str]) -> str | None:
    """The tag in `latest`; None where there is no such file. Raises StorageError for an empty one."""
    path = os.path.join(load_dir, _LATEST)
    try:
        with open(path) as file:
            tag = file.read().strip()
    except FileNotFoundError:
        return None
    if not tag:
        raise StorageError(f"{path} is empty and names no checkpoint: pass a tag, or write the name of its folder into the file")
    return tag


def write_weights(folder: str, name: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Writes weights with torch.save, or as safetensors by the name's ending, where a tied tensor has its first name."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    if not name.endswith(".safetensors"):

        def write(draft: str) -> None:
            with open(draft, "wb") as file:
                torch.save(dict(weights), file)

        replace(path, write)
        return
    from safetensors.torch import save_file

    first = {id(tensor): key for key, tensor in reversed(list(weights.items()))}
    once = {key: tensor.contiguous() for key, tensor in weights.items() if first[id(tensor)] == key}
    replace(path, lambda draft: save_file(once, draft, metadata={"format": "pt"}))
