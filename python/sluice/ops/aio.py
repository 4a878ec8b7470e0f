"""Asynchronous transfers between host memory and files, with DeepSpeed's interface.

>>> handle = aio_handle()
>>> handle.async_pwrite(tensor, "/local_nvme/tensor.bin")
0
>>> handle.wait()
1

A buffer is a PyTorch tensor on the CPU, a NumPy array, or any object with the buffer protocol; it must be contiguous.
Transfers use O_DIRECT where the file system has it, through io_uring, libaio or threads. Sizes, offsets and addresses
may be arbitrary. Multiples of :meth:`aio_handle.get_alignment` need no copy. Two writes in flight must not share a
block of 4096 bytes of a file.
"""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING

from .. import _core

if TYPE_CHECKING:
    import torch

__all__ = ["aio_handle"]

_ALIGNMENT = 4096  # bytes; a page, and the largest block of the drives in use


class aio_handle:
    """A queue of transfers on a drive. Not for several threads at once.

    ``block_size``: bytes of a request to the drive, a multiple of 4096; a transfer is cut into such requests.
    ``queue_depth``: requests in flight, 1 to 4096. ``intra_op_parallelism``: threads of the backend "threads", 1 to 64;
    io_uring and libaio need none. ``single_submit`` and ``overlap_events`` are kept for their getters: requests are
    always submitted as the queue has room, and overlap.

    Every wait releases the GIL. A handle that is dropped first waits for its transfers. A forked child makes a handle of
    its own; calls of its parent's raise :class:`sluice.Error`.

    Raises ValueError for a number out of range.
    """

    def __init__(
        self,
        block_size: int = 1024 * 1024,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
    ) -> None:
        for name, value in (("block_size", block_size), ("queue_depth", queue_depth), ("threads", intra_op_parallelism)):
            if not 0 < value < 2**32:
                raise ValueError(f"{name} is {value}; it must be positive and below 2**32")
        self._handle = _core.AioHandle(block_size, queue_depth, intra_op_parallelism)
        self._block_size = block_size
        self._queue_depth = queue_depth
        self._single_submit = bool(single_submit)
        self._overlap_events = bool(overlap_events)
        self._intra_op_parallelism = intra_op_parallelism

    def get_block_size(self) -> int:
        """Bytes of a request."""
        return self._block_size

    def get_queue_depth(self) -> int:
        """Requests in flight, at most."""
        return self._queue_depth

    def get_single_submit(self) -> bool:
        """As given; without effect."""
        return self._single_submit

    def get_overlap_events(self) -> bool:
        """As given; without effect."""
        return self._overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Threads of the backend "threads"."""
        return self._intra_op_parallelism

    def get_alignment(self) -> int:
        """Bytes: a transfer whose address, offset and size are multiples of it is not copied on its way."""
        return _ALIGNMENT

    @property
    def backend(self) -> str:
        """The backend in use: "io_uring", "libaio" or "threads"."""
        return self._handle.backend_name()

    @property
    def why_not_better(self) -> str:
        """Why a better backend was not taken; empty when this is the best."""
        return self._handle.why_not_better()

    def pread(
        self,
        buffer: object,
        filename: str | os.PathLike[str],
        validate: bool = False,
        async_op: bool = False,
        file_offset: int = 0,
    ) -> int:
        """Fills the buffer with the file's bytes from ``file_offset`` (bytes) on.

        ``async_op``: returns 0 at once, and :meth:`wait` finishes the transfer; keep the buffer untouched until then.
        The memory is the one that the buffer has now: another ``.data`` of a tensor gets nothing. Otherwise blocks and
        returns 1. ``validate``: reads the file again when the transfer has ended, and compares.

        Raises FileNotFoundError; OSError (EIO) when the file is shorter than the buffer, and for other failures of the
        drive; ValueError for a buffer that is not contiguous or not in host memory, and for a conjugated or negated view of
        a tensor; BufferError for a read-only one; :class:`sluice.StorageError` when ``validate`` finds a difference. With
        ``async_op``, errors of the transfer itself come from :meth:`wait`.
        """
        return self._start(False, buffer, filename, file_offset, validate, async_op)

    def pwrite(
        self,
        buffer: object,
        filename: str | os.PathLike[str],
        validate: bool = False,
        async_op: bool = False,
        file_offset: int = 0,
    ) -> int:
        """Writes the buffer to the file, from ``file_offset`` (bytes) on; other bytes of the file stay.

        Makes a missing file (mode 0600) and allocates its blocks first: on a full disk it raises OSError (ENOSPC),
        with the needed and the free bytes, before anything is written. Otherwise as :meth:`pread`.
        """
        return self._start(True, buffer, filename, file_offset, validate, async_op)

    def read(
        self, buffer: object, filename: str | os.PathLike[str], validate: bool = False, file_offset: int = 0
    ) -> int:
        """:meth:`pread` that blocks."""
        return self._start(False, buffer, filename, file_offset, validate, False)

    def write(
        self, buffer: object, filename: str | os.PathLike[str], validate: bool = False, file_offset: int = 0
    ) -> int:
        """:meth:`pwrite` that blocks."""
        return self._start(True, buffer, filename, file_offset, validate, False)

    def sync_pread(self, buffer: object, filename: str | os.PathLike[str], file_offset: int = 0) -> int:
        """Reads as :meth:`pread`; blocks until this transfer has ended, and returns 1."""
        return self._start(False, buffer, filename, file_offset, False, False)

    def sync_pwrite(self, buffer: object, filename: str | os.PathLike[str], file_offset: int = 0) -> int:
        """Writes as :meth:`pwrite`; blocks until this transfer has ended, and returns 1."""
        return self._start(True, buffer, filename, file_offset, False, False)

    def async_pread(self, buffer: object, filename: str | os.PathLike[str], file_offset: int = 0) -> int:
        """Starts a :meth:`pread`, and returns 0."""
        return self._start(False, buffer, filename, file_offset, False, True)

    def async_pwrite(self, buffer: object, filename: str | os.PathLike[str], file_offset: int = 0) -> int:
        """Starts a :meth:`pwrite`, and returns 0."""
        return self._start(True, buffer, filename, file_offset, False, True)

    def wait(self) -> int:
        """Blocks, without the GIL, until every started transfer has ended; returns their number.

        Raises the error of the first one that failed, after all have ended.
        """
        return self._handle.wait()

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: torch.Tensor) -> torch.Tensor:
        """A zeroed tensor of ``num_elem`` elements of the example's type, in page-locked memory.

        The memory is registered with the backend, so transfers pin no page. It lives until the tensor is gone and
        :meth:`free_cpu_locked_tensor` was called, or the handle is gone.

        Raises MemoryError where the limit of locked memory (``ulimit -l``) does not allow it, and ValueError for less than
        one element.
        """
        import torch

        if num_elem < 1:
            raise ValueError(f"num_elem is {num_elem}; it must be at least 1")
        memory = _core.LockedMemory(num_elem * example_tensor.element_size())
        self._handle.keep_memory(memory)
        return torch.frombuffer(memory, dtype=example_tensor.dtype, count=num_elem)

    def free_cpu_locked_tensor(self, tensor: torch.Tensor) -> bool:
        """Ends the registration of a tensor of :meth:`new_cpu_locked_tensor`; False when it is not of this handle.

        The tensor's memory is freed with the last tensor that uses it. Raises ValueError while a transfer uses it.
        """
        return self._handle.free_memory(tensor.data_ptr())

    def _start(
        self,
        write: bool,
        buffer: object,
        filename: str | os.PathLike[str],
        file_offset: int,
        validate: bool,
        async_op: bool,
    ) -> int:
        offset = operator.index(file_offset)
        if not 0 <= offset < 2**63:
            raise ValueError(f"file_offset is {offset}; it must be at least 0 bytes and below 2**63")
        path = os.fsencode(filename)
        if b"\0" in path:
            raise ValueError(f"the file name {filename!r} has a NUL character, where the system would end it")
        if async_op:
            self._handle.begin(write, buffer, path, offset, validate)
            return 0
        self._handle.transfer(write, buffer, path, offset, validate)
        return 1
