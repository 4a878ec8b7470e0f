"""DeepSpeed's asynchronous I/O operator, as bench/peers/aio_peer.py runs it."""

from __future__ import annotations

import math
import mmap
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from paired import MIB, PAGE

# The bench file repeats itself after so many bytes (nvme/include/sluice/nvme/bench_file.hpp).
PERIOD = 257 * PAGE
STATES = 3  # p, m and v
SWAP_TILES = 3  # one is read, one is computed on, one is written


@dataclass(frozen=True)
class Case:
    """A measured operation, with DeepSpeed's fixed settings."""

    op: str
    memory: str
    handles: int = 2
    least_tile: int = MIB

    def __str__(self) -> str:
        return f"{self.op} {self.memory}, {self.use()}"

    def use(self) -> str:
        if self.op == "swap":
            return f"from {self.least_tile // MIB} MiB"
        return "1 handle" if self.handles == 1 else f"{self.handles} handles"


@dataclass(frozen=True)
class Settings:
    """Settings of DeepSpeed's handles, and the size of their tensors."""

    block_size: int = MIB
    queue_depth: int = 32
    intra_op_parallelism: int = 1
    # single_submit, overlap_events
    mode: tuple[bool, bool] = (False, True)
    tile: int = 8 * MIB

    def handle_arguments(self) -> tuple[int, int, bool, bool, int]:
        return (self.block_size, self.queue_depth, *self.mode, self.intra_op_parallelism)

    def __str__(self) -> str:
        arguments = ", ".join(map(str, self.handle_arguments()))
        return f"aio_handle({arguments}), tensors of {self.tile // MIB} MiB"


class Buffers:
    """Memory for DeepSpeed's transfers, shared by all settings: only one of them runs at a time."""

    def __init__(self, make: Callable[[int], torch.Tensor], largest_tile: int) -> None:
        # Filled, so that no page is made while the clock runs.
        self.tiles = [make(largest_tile).fill_(0) for _ in range(SWAP_TILES * STATES)]
        self.pattern = make(source_bytes(largest_tile) + largest_tile).fill_(0)

    def contents(self, offset: int, count: int) -> torch.Tensor:
        """The file's content there. Writes do not change it, so both sides can check it."""
        begin = offset % source_bytes(count)
        return self.pattern[begin : begin + count]


def source_bytes(tile: int) -> int:
    """Where writes come from, in turn: two tiles' memory, as with reads, in whole periods."""
    return math.ceil(2 * tile / PERIOD) * PERIOD


class DeepSpeed:
    """One op with one choice of settings.

    Two handles, as its pipelined optimizer swapper has them, take tiles in turn: one tile is in
    flight while another is waited for. One handle, as its own benchmark has, does tile after tile.
    swap needs two.
    """

    def __init__(
        self, aio, path: Path, size: int, case: Case, buffers: Buffers, settings: Settings
    ) -> None:
        self.handles = [aio.aio_handle(*settings.handle_arguments()) for _ in range(case.handles)]
        self.path = str(path)
        self.buffers = buffers
        self.tile = settings.tile
        self.region = size // STATES // PAGE * PAGE  # of one state
        self.tiles = (self.region if case.op == "swap" else size) // self.tile
        self.next = 0  # slices go on where the last one ended
        self.op = case.op

    def run(self, seconds: float) -> float:
        """Decimal GB/s, read and write together; what is in flight at the end is waited for."""
        begin = time.perf_counter()

        def time_is_up() -> bool:
            return time.perf_counter() - begin >= seconds

        moved = self._swap(time_is_up) if self.op == "swap" else self._stream(time_is_up)
        return 1e-9 * moved / (time.perf_counter() - begin)

    def _stream(self, time_is_up: Callable[[], bool]) -> int:
        first = self.next
        unfinished = first
        while self.next == first or not time_is_up():
            self._begin_tile(self.next)
            self.next += 1
            if self.next - unfinished == len(self.handles):
                finish(self._handle(unfinished), 1)
                unfinished += 1
        for index in range(unfinished, self.next):
            finish(self._handle(index), 1)
        return (self.next - first) * self.tile

    def _handle(self, index: int):
        return self.handles[index % len(self.handles)]

    def _begin_tile(self, index: int) -> None:
        handle = self._handle(index)
        offset = index % self.tiles * self.tile
        if self.op == "read":
            check(handle.async_pread(self.buffers.tiles[index % 2][: self.tile], self.path, offset))
        else:
            contents = self.buffers.contents(offset, self.tile)
            check(handle.async_pwrite(contents, self.path, offset))

    # The order of PipelinedOptimizerSwapper with pipeline_read and pipeline_write: the next tile is
    # read and the last one written while this one is computed on.
    def _swap(self, time_is_up: Callable[[], bool]) -> int:
        reader, writer = self.handles
        first = self.next
        self._begin_states(reader.async_pread, first)
        more = True
        while more:
            finish(reader, STATES)
            more = not time_is_up()
            if more:
                self._begin_states(reader.async_pread, self.next + 1)
            for state in self._states(self.next):
                touch(state)
            if self.next > first:
                finish(writer, STATES)
            self._begin_states(writer.async_pwrite, self.next)
            self.next += 1
        finish(writer, STATES)
        return (self.next - first) * 2 * STATES * self.tile

    def _begin_states(self, begin: Callable[[torch.Tensor, str, int], int], index: int) -> None:
        offset = index % self.tiles * self.tile
        for number, state in enumerate(self._states(index)):
            check(begin(state, self.path, number * self.region + offset))

    def _states(self, index: int) -> list[torch.Tensor]:
        at = index % SWAP_TILES * STATES
        return [tile[: self.tile] for tile in self.buffers.tiles[at : at + STATES]]


def check(result: int) -> None:
    if result != 0:
        sys.exit("aio_peer.py: DeepSpeed refused a transfer; what it says is above")


def finish(handle, expected: int) -> None:
    done = handle.wait()
    if done != expected:
        sys.exit(f"aio_peer.py: DeepSpeed finished {done} transfers, {expected} were expected")


def touch(memory: torch.Tensor) -> None:
    """Every cache line is read and written, and holds what it held."""
    memory.view(torch.int64)[::8].add_(0)


def file_bytes(path: Path, offset: int, count: int) -> bytes:
    """Past the page cache, so that nothing of the file stays in memory."""
    memory = mmap.mmap(-1, count)  # aligned to a page, as O_DIRECT wants it
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    done = 0
    while done < count:
        done += os.preadv(file, [memoryview(memory)[done:]], offset + done)
    os.close(file)
    return bytes(memory)


def verify(aio, path: Path, size: int, buffers: Buffers) -> None:
    """That DeepSpeed reads what the file holds, all of it."""
    handle = aio.aio_handle(*Settings().handle_arguments())
    for offset in range(0, size, 8 * MIB):
        count = min(8 * MIB, size - offset)
        tile = buffers.tiles[0][:count].fill_(0)
        check(handle.async_pread(tile, str(path), offset))
        finish(handle, 1)
        if tile.numpy().tobytes() != file_bytes(path, offset, count):
            sys.exit(f"aio_peer.py: DeepSpeed read other bytes than {path} holds at {offset}")
