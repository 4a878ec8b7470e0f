"""Compares `sluice nvme bench` with DeepSpeed's asynchronous I/O operator, on the same file.

bench/peers/README.md says what is compared and how; bench/peers/setup.sh makes what is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import mmap
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

from paired import KIB, MIB, PAGE, Progress, machine, parse_size, quotients, span, summarize

# As setup.sh built the operator; read when deepspeed is imported.
os.environ.update(
    DS_ACCELERATOR="cpu",
    CUDA_VISIBLE_DEVICES="",
    TORCH_EXTENSIONS_DIR=str(HERE / ".venv" / "torch_extensions"),
)
try:
    import deepspeed
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder
except ImportError as error:
    sys.exit(f"aio_peer.py: {error}; run bench/peers/setup.sh, then bench/peers/.venv/bin/python")

# The bench file repeats itself after so many bytes (nvme/include/sluice/nvme/bench_file.hpp).
PERIOD = 257 * PAGE
STATES = 3  # p, m and v
SWAP_TILES = 3  # one is read, one is computed on, one is written

OPS = ("read", "write", "swap")
MEMORIES = ("pinned", "unpinned")

SWEEP_SECONDS = 0.3
SWEEP_PASSES = 2
FINALISTS = 5
FINAL_ROUNDS = 5


@dataclass(frozen=True)
class Settings:
    """Of DeepSpeed's handles, and the size of the tensors that they are given."""

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


def settings_axes(size: int) -> dict[str, list]:
    return {
        "block_size": [128 * KIB << i for i in range(7)],
        "tile": [tile for tile in (MIB << i for i in range(7)) if fits(tile, size)],
        "intra_op_parallelism": [1, 2, 4],  # 3 would cut tensors in the middle of a sector
        "mode": [(single, overlap) for single in (False, True) for overlap in (False, True)],
        "queue_depth": [8, 16, 32, 64, 128],
    }


def fits(tile: int, size: int) -> bool:
    """Whether each state has so many tiles that none is read while it is still written."""
    return SWAP_TILES * STATES * tile <= size


class Sluice:
    """Our side: a process for each slice, which measures its own time without its start."""

    def __init__(self, program: Path, directory: Path, size: int) -> None:
        self.program = program
        self.directory = directory
        self.size = size

    def command(self, op: str, seconds: float) -> list[str]:
        line = [str(self.program), "nvme", "bench", str(self.directory), "--op", op]
        return [*line, "--size", str(self.size), "--seconds", str(seconds), "--json"]

    def run(self, op: str, seconds: float) -> dict:
        done = subprocess.run(self.command(op, seconds), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"aio_peer.py: sluice nvme bench failed: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])

    def version(self) -> str:
        line = [str(self.program), "--version"]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


class Buffers:
    """Memory for DeepSpeed's transfers, shared by all settings: only one of them runs at a time."""

    def __init__(self, make: Callable[[int], torch.Tensor], largest_tile: int) -> None:
        # Filled, so that no page is made while the clock runs.
        self.tiles = [make(largest_tile).fill_(0) for _ in range(SWAP_TILES * STATES)]
        self.pattern = make(source_bytes(largest_tile) + largest_tile).fill_(0)

    def contents(self, offset: int, count: int) -> torch.Tensor:
        """What the file holds there: writes leave it as it was, so both sides can check it."""
        begin = offset % source_bytes(count)
        return self.pattern[begin : begin + count]


def source_bytes(tile: int) -> int:
    """Where writes come from, in turn: two tiles' memory, as with reads, in whole periods."""
    return math.ceil(2 * tile / PERIOD) * PERIOD


class DeepSpeed:
    """One op with one choice of settings.

    Two handles, as its pipelined optimizer swapper has them. For read and write they take tiles in
    turn, so that there is always one in flight while the other is waited for.
    """

    def __init__(
        self, aio, path: Path, size: int, op: str, buffers: Buffers, settings: Settings
    ) -> None:
        self.handles = [aio.aio_handle(*settings.handle_arguments()) for _ in range(2)]
        self.path = str(path)
        self.buffers = buffers
        self.tile = settings.tile
        self.region = size // STATES // PAGE * PAGE  # of one state
        self.tiles = (self.region if op == "swap" else size) // self.tile
        self.next = 0  # slices go on where the last one ended
        self.op = op

    def run(self, seconds: float) -> float:
        """Decimal GB/s, read and write together; what is in flight at the end is waited for."""
        begin = time.perf_counter()

        def time_is_up() -> bool:
            return time.perf_counter() - begin >= seconds

        moved = self._swap(time_is_up) if self.op == "swap" else self._stream(time_is_up)
        return 1e-9 * moved / (time.perf_counter() - begin)

    def _stream(self, time_is_up: Callable[[], bool]) -> int:
        first = self.next
        self._begin_tile(first)
        while not time_is_up():
            self.next += 1
            self._begin_tile(self.next)
            finish(self.handles[(self.next - 1) % 2], 1)
        finish(self.handles[self.next % 2], 1)
        self.next += 1
        return (self.next - first) * self.tile

    def _begin_tile(self, index: int) -> None:
        handle = self.handles[index % 2]
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


class Sweep:
    """DeepSpeed's best settings: one axis after the other, then the best against each other."""

    def __init__(
        self, make: Callable[[Settings], DeepSpeed], axes: dict[str, list], progress: Callable
    ) -> None:
        self.make = make
        self.axes = axes
        self.progress = progress
        self.rates: dict[Settings, list[float]] = {}

    def best(self) -> Settings:
        best = Settings()
        for _ in range(SWEEP_PASSES):
            for axis, values in self.axes.items():
                candidates = [dataclasses.replace(best, **{axis: value}) for value in values]
                self._measure(candidates)
                best = self._order(candidates)[0]
        # One slice each says little of those that are close: they share rounds, turned every time.
        finalists = self._order(self.rates)[:FINALISTS]
        for round_number in range(FINAL_ROUNDS):
            self._measure(finalists if round_number % 2 == 0 else finalists[::-1])
        return self._order(finalists)[0]

    def _measure(self, candidates: Iterable[Settings]) -> None:
        for settings in candidates:
            self.progress(str(settings))
            rate = self.make(settings).run(SWEEP_SECONDS)
            self.rates.setdefault(settings, []).append(rate)

    def _order(self, candidates: Iterable[Settings]) -> list[Settings]:
        def median_rate(settings: Settings) -> float:
            return statistics.median(self.rates[settings])

        return sorted(candidates, key=median_rate, reverse=True)


@dataclass
class Comparison:
    """One op with one kind of memory. Rounds of three slices: ours, theirs, and theirs again."""

    op: str
    memory: str
    settings: Settings
    peer: DeepSpeed
    ours: list[float] = dataclasses.field(default_factory=list)
    theirs: list[float] = dataclasses.field(default_factory=list)
    again: list[float] = dataclasses.field(default_factory=list)

    def run_round(self, sluice: Sluice, seconds: float, reverse: bool) -> None:
        slices = [
            (self.ours, lambda: sluice.run(self.op, seconds)["GBps"]),
            (self.theirs, lambda: self.peer.run(seconds)),
            (self.again, lambda: self.peer.run(seconds)),
        ]
        for rates, run in reversed(slices) if reverse else slices:
            rates.append(run())

    def to_json(self) -> dict:
        return {
            "op": self.op,
            "memory": self.memory,
            "settings": dataclasses.asdict(self.settings),
            "deepspeed_call": str(self.settings),
            "sluice_GBps": self.ours,
            "deepspeed_GBps": self.theirs,
            "deepspeed_again_GBps": self.again,
            "ratio": summarize(quotients(self.ours, self.theirs)),
            "control": summarize(quotients(self.again, self.theirs)),
        }


def table(comparisons: list[Comparison]) -> str:
    rows = [
        ["op", "memory", "sluice GB/s", "deepspeed GB/s", "ratio", "quartiles", "90 % interval"]
        + ["control", "90 % interval"]
    ]
    for comparison in comparisons:
        result = comparison.to_json()
        ratio, control = result["ratio"], result["control"]
        rows.append(
            [comparison.op, comparison.memory]
            + [f"{statistics.median(rates):.2f}" for rates in (comparison.ours, comparison.theirs)]
            + [f"{ratio['median']:.3f}", span(ratio["quartiles"]), span(ratio["interval90"])]
            + [f"{control['median']:.3f}", span(control["interval90"])]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", metavar="DIR", type=Path, help="on the drive to measure")
    parser.add_argument("--size", type=parse_size, default="2GiB", help="of the file (2GiB)")
    parser.add_argument("--seconds-per-slice", type=float, default=0.5, metavar="S", help="(0.5)")
    parser.add_argument("--rounds", type=int, default=60, help="of three slices each (60)")
    parser.add_argument("--sluice", type=Path, default=REPOSITORY / "build" / "bin" / "sluice")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="all ratios, as JSON")
    arguments = parser.parse_args()
    if not fits(8 * MIB, arguments.size):
        parser.error(f"--size: at least {SWAP_TILES * STATES * 8} MiB are needed")
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1")
    if not arguments.sluice.is_file():
        parser.error(f"{arguments.sluice} is not there; build it, or name it with --sluice")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    deepspeed.utils.logger.setLevel("ERROR")  # its notes would tear the progress line
    aio = AsyncIOBuilder().load()
    progress = Progress()
    sluice = Sluice(arguments.sluice, arguments.directory, arguments.size)
    path = arguments.directory / "bench.sluice"

    progress.show("filling the file")
    if not sluice.run("read", 0.1)["direct"]:
        sys.exit(f"aio_peer.py: {arguments.directory}: its file system has no direct I/O")

    axes = settings_axes(arguments.size)
    locker = aio.aio_handle()
    example = torch.empty(0, dtype=torch.uint8)
    makers = {
        "pinned": lambda count: locker.new_cpu_locked_tensor(count, example),
        "unpinned": lambda count: torch.empty(count, dtype=torch.uint8),
    }
    buffers = {memory: Buffers(makers[memory], max(axes["tile"])) for memory in MEMORIES}
    for memory in MEMORIES:
        progress.show(f"comparing what DeepSpeed reads with the file, {memory} memory")
        verify(aio, path, arguments.size, buffers[memory])
        pattern = buffers[memory].pattern
        contents = bytearray(file_bytes(path, 0, pattern.numel()))
        pattern.copy_(torch.frombuffer(contents, dtype=torch.uint8))

    def comparison_with_best(op: str, memory: str) -> Comparison:
        def make(settings: Settings) -> DeepSpeed:
            return DeepSpeed(aio, path, arguments.size, op, buffers[memory], settings)

        def show(text: str) -> None:
            progress.show(f"sweep of DeepSpeed, {op}, {memory}: {text}")

        best = Sweep(make, axes, show).best()
        return Comparison(op, memory, best, make(best))

    comparisons = [comparison_with_best(op, memory) for op in OPS for memory in MEMORIES]

    for number in range(arguments.rounds):
        for comparison in comparisons:
            progress.show(
                f"round {number + 1} of {arguments.rounds}: {comparison.op}, {comparison.memory}"
            )
            comparison.run_round(sluice, arguments.seconds_per_slice, number % 2 == 1)
    progress.clear()

    print(f"{arguments.rounds} rounds of slices of {arguments.seconds_per_slice:g} s")
    print(table(comparisons))
    for comparison in comparisons:
        print(f"deepspeed, {comparison.op}, {comparison.memory}: {comparison.settings}")
    if arguments.out:
        report = {
            "machine": machine(arguments.directory),
            "versions": {
                "sluice": sluice.version(),
                "deepspeed": deepspeed.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "command": shlex.join(sys.argv),
            "sluice_commands": {
                op: shlex.join(sluice.command(op, arguments.seconds_per_slice)) for op in OPS
            },
            "size_bytes": arguments.size,
            "seconds_per_slice": arguments.seconds_per_slice,
            "rounds": arguments.rounds,
            "comparisons": [comparison.to_json() for comparison in comparisons],
        }
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)  # DeepSpeed aborts when a handle goes while its transfers are in flight
