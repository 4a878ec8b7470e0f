"""The fp32 master weights in a state. The program `sluice export` reads them: it verifies checksums, and merges ranks."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import struct
import subprocess
import tempfile

import torch

from ..._errors import Error, StorageError
from ..._program import MISSING, PROGRAM
from .states import State

_FAILED = 4  # exit code of the program: what it read or wrote is at fault, and not its arguments
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def weights_of(state: State) -> dict[str, torch.Tensor]:
    """By name, in fp32, each mapped from a file that has no name any more: disk space, and memory only where it is read.

    A write changes the tensor alone. The space is free when the last tensor is gone. It is beside the state, or in the
    folder of temporary files. Raises StorageError for what is damaged, OSError where neither has room.
    """
    size_bytes = sum(4 * math.prod(shape) for shape in state.shapes.values())
    beside = os.path.dirname(state.path)
    full: Exception | None = None
    for place in (beside, tempfile.gettempdir()):
        if not os.access(place, os.W_OK) or shutil.disk_usage(place).free <= size_bytes:
            continue
        try:
            return _read_by(place, state)
        except (OSError, StorageError) as error:
            if not _is_full(error):
                raise
            full = error
    raise OSError(
        errno.ENOSPC,
        f"fp32 weights of {size_bytes} bytes are read by way of a file, for which neither this folder nor TMPDIR has room "
        "or leave: set TMPDIR to a folder that has",
        beside,
    ) from full


def _is_full(error: Exception) -> bool:
    """Whether a place takes no more, as a quota says first with the write. The program tells it in words."""
    return any(error.errno == each if isinstance(error, OSError) else os.strerror(each) in str(error) for each in _FULL)


def _read_by(place: str, state: State) -> dict[str, torch.Tensor]:
    # On NFS a mapped file keeps its folder: it is removed as far as can be.
    with tempfile.TemporaryDirectory(prefix=".weights-", dir=place, ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "weights.safetensors")
        _export(state.path, path)
        found = _mapped(path)
    return {name: found[name] for name in state.shapes}


def _export(state: str, path: str) -> None:
    if not PROGRAM.is_file():
        raise Error(f"weights of a checkpoint are read by the program sluice, and {MISSING}")
    done = subprocess.run([PROGRAM, "export", state, "--out", path], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    why = done.stderr.strip().removeprefix("sluice: ") or f"sluice export {state} ended with {done.returncode}"
    raise (StorageError if done.returncode == _FAILED else Error)(why)


def _mapped(path: str) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file of fp32, as the program writes it."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
    header.pop("__metadata__", None)
    data = torch.from_file(path, shared=False, size=os.path.getsize(path), dtype=torch.uint8)[8 + header_bytes :]
    return {
        name: data[slice(*entry["data_offsets"])].view(torch.float32).view(entry["shape"]) for name, entry in header.items()
    }
