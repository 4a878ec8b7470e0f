"""Parameters whose memory is a file, so that a model larger than memory can be built."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

_RESIDENT_BYTES = 512 << 20  # of the files' pages in this process, before they are given back
_POLL_SECONDS = 0.02
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _resident_files() -> int:
    """Bytes of files in this process: those of parameters, and of libraries."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[2]) * _PAGE_BYTES


class _Pages:
    """Gives back the pages of mapped files when many are resident: the files keep their bytes."""

    def __init__(self) -> None:
        self._mapped: list[weakref.ref[mmap.mmap]] = []
        self.forget_thread()

    def forget_thread(self) -> None:
        """A forked child has none, and makes its own."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, pages: mmap.mmap) -> None:
        with self._lock:
            self._mapped.append(weakref.ref(pages))
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, args=(_resident_files(),), name="sluice pages", daemon=True)
                self._thread.start()

    def _watch(self, libraries: int) -> None:
        while True:
            with self._lock:
                self._mapped = [alive for alive in self._mapped if alive() is not None]
                if not self._mapped:
                    self._thread = None
                    return
            if _resident_files() > libraries + _RESIDENT_BYTES:
                self.give_back()
                libraries = _resident_files()  # some are loaded later
            threading.Event().wait(_POLL_SECONDS)

    def give_back(self) -> None:
        with self._lock:
            for alive in self._mapped:
                pages = alive()
                if pages is not None:
                    pages.madvise(mmap.MADV_DONTNEED)


_pages = _Pages()
os.register_at_fork(after_in_child=_pages.forget_thread)


def _file_tensor(folder: str, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape over a file without a name, whose blocks are there: a full drive is an error here."""
    count = like.numel()
    handle, path = tempfile.mkstemp(prefix="sluice-parameter-", dir=folder)
    try:
        try:
            os.posix_fallocate(handle, 0, count * dtype.itemsize)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}: {count * dtype.itemsize} bytes of a parameter", folder) from None
        pages = mmap.mmap(handle, count * dtype.itemsize)
    finally:
        os.close(handle)
        os.unlink(path)
    _pages.add(pages)
    return torch.frombuffer(pages, dtype=dtype).view(like.shape)


_folders: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # of parameters that were moved to files


def is_in_file(parameter: torch.Tensor) -> bool:
    """Whether the parameter was built in a file."""
    return parameter in _folders


def placed(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Values for a parameter: in a file, where it was built in one, since memory may be too small."""
    folder = _folders.get(parameter)
    return values if folder is None else _file_tensor(folder, values, values.dtype).copy_(values)


class FileParameters:
    """Inside the context, every parameter that a module registers is moved to a file.

    ``folder`` None: parameters stay in memory and take the data type only.
    """

    def __init__(self, folder: str | None, dtype: torch.dtype | None) -> None:
        self._folder, self._dtype = folder, dtype
        if folder is not None:
            os.makedirs(folder, exist_ok=True)
        self._moved: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # a tied parameter is registered twice
        self._register: Any = None

    def move(self, parameter: nn.Parameter | None) -> None:
        """Converts a parameter on the CPU to the data type, and moves its values to a file where there is a folder."""
        if parameter is None or parameter.is_meta or parameter.device.type != "cpu" or parameter in self._moved:
            return
        dtype = self._dtype if self._dtype is not None and parameter.is_floating_point() else parameter.dtype
        with torch.no_grad():
            if self._folder is None or parameter.numel() == 0:
                parameter.data = parameter.data.to(dtype)
                return
            moved = _file_tensor(self._folder, parameter, dtype)
            moved.copy_(parameter.data)
            parameter.data = moved
        self._moved[parameter] = True
        _folders[parameter] = self._folder

    def __enter__(self) -> None:
        register = self._register = nn.Module.register_parameter
        files = self

        def register_parameter(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
            register(self, name, param)
            files.move(param)

        nn.Module.register_parameter = register_parameter  # type: ignore[method-assign,unused-ignore]

    def __exit__(self, *_: Any) -> None:
        nn.Module.register_parameter = self._register  # type: ignore[method-assign,unused-ignore]
