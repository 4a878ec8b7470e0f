"""Compares `sluice nvme bench` with DeepSpeed's asynchronous I/O operator, on the same file.

bench/peers/README.md says what is compared and how; bench/peers/setup.sh makes what is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
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

from paired import KIB, MIB, PAGE, Progress, machine, parse_size, quotients, size_text, span, summarize

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
    from deepspeed_aio import STATES, SWAP_TILES, Buffers, Case, DeepSpeed, Settings
    from deepspeed_aio import file_bytes, verify
except ImportError as error:
    sys.exit(f"aio_peer.py: {error}; run bench/peers/setup.sh, then bench/peers/.venv/bin/python")

OPS = ("read", "write", "swap")
MEMORIES = ("pinned", "unpinned")
# Its swapper's tiles are the parameters of a sub-group. With small ones the memory stays in the
# processor's caches, as ours does, and some drives are faster then: also measured, so that the
# difference is not mistaken for the operator's.
SWAPPER_TILE = 8 * MIB
CASES = [
    *(Case(op, memory, n) for memory in MEMORIES for op in OPS[:2] for n in (1, 2)),
    *(Case("swap", memory, 2, tile) for memory in MEMORIES for tile in (SWAPPER_TILE, MIB)),
]

SWEEP_SECONDS = 0.3
SWEEP_PASSES = 2
OUR_PASSES = 4
FINALISTS = 8
FINAL_ROUNDS = 6


def settings_axes(size: int, least_tile: int) -> dict[str, list]:
    tiles = [MIB << i for i in range(7)]
    return {
        "block_size": [128 * KIB << i for i in range(7)],
        "tile": [tile for tile in tiles if tile >= least_tile and fits(tile, size)],
        "intra_op_parallelism": [1, 2, 4],  # 3 would cut tensors in the middle of a sector
        "mode": [(single, overlap) for single in (False, True) for overlap in (False, True)],
        "queue_depth": [8, 16, 32, 64, 128],
    }


def fits(tile: int, size: int) -> bool:
    """Whether each state has so many tiles that none is read while it is still written."""
    return SWAP_TILES * STATES * tile <= size


@dataclass(frozen=True)
class Queue:
    """Our settings."""

    block: int = 256 * KIB
    depth: int = 32


class Sluice:
    """Our side: a process for each slice, which measures its own time without its start."""

    def __init__(self, program: Path, directory: Path, size: int) -> None:
        self.program = program
        self.directory = directory
        self.size = size

    def command(self, op: str, seconds: float, queue: Queue) -> list[str]:
        line = [str(self.program), "nvme", "bench", str(self.directory), "--op", op]
        line += ["--block", str(queue.block), "--depth", str(queue.depth)]
        return [*line, "--size", str(self.size), "--seconds", str(seconds), "--json"]

    def run(self, op: str, seconds: float, queue: Queue) -> dict:
        done = subprocess.run(self.command(op, seconds, queue), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"aio_peer.py: sluice nvme bench failed: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])

    def best(self, op: str, progress: Callable) -> Queue:
        """As the other side gets its best settings; few of them, several times."""
        queues = [Queue(256 * KIB << i, 8 << j) for i in range(3) for j in range(3)]
        rates: dict[Queue, list[float]] = {queue: [] for queue in queues}
        for number in range(OUR_PASSES):
            for queue in queues if number % 2 == 0 else queues[::-1]:
                progress(f"{size_text(queue.block)} x {queue.depth}")
                rates[queue].append(self.run(op, SWEEP_SECONDS, queue)["GBps"])
        return max(queues, key=lambda queue: statistics.median(rates[queue]))

    def version(self) -> str:
        line = [str(self.program), "--version"]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


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
    """Rounds of three slices: ours, theirs, and theirs again.

    Of swap there is a fourth, our mixed: as many bytes read as written, which nobody touches. What
    it reaches is what the drive gives, to either side.
    """

    case: Case
    queue: Queue
    settings: Settings
    peer: DeepSpeed
    ours: list[float] = dataclasses.field(default_factory=list)
    theirs: list[float] = dataclasses.field(default_factory=list)
    again: list[float] = dataclasses.field(default_factory=list)
    mixed: list[float] = dataclasses.field(default_factory=list)

    def run_round(self, sluice: Sluice, seconds: float, reverse: bool) -> None:
        slices = [
            (self.ours, lambda: sluice.run(self.case.op, seconds, self.queue)["GBps"]),
            (self.theirs, lambda: self.peer.run(seconds)),
            (self.again, lambda: self.peer.run(seconds)),
        ]
        if self.case.op == "swap":
            slices.append((self.mixed, lambda: sluice.run("mixed", seconds, self.queue)["GBps"]))
        for rates, run in reversed(slices) if reverse else slices:
            rates.append(run())

    def to_json(self) -> dict:
        return {
            **dataclasses.asdict(self.case),
            "sluice_settings": dataclasses.asdict(self.queue),
            "settings": dataclasses.asdict(self.settings),
            "deepspeed_call": str(self.settings),
            "sluice_GBps": self.ours,
            "deepspeed_GBps": self.theirs,
            "deepspeed_again_GBps": self.again,
            "ratio": summarize(quotients(self.ours, self.theirs)),
            "control": summarize(quotients(self.again, self.theirs)),
            "sluice_mixed_GBps": self.mixed,
            "mixed_ratio": summarize(quotients(self.mixed, self.theirs)) if self.mixed else None,
        }


def table(comparisons: list[Comparison]) -> str:
    rows = [
        ["op", "memory", "DeepSpeed with", "sluice GB/s", "deepspeed GB/s"]
        + ["ratio", "quartiles", "90 % interval", "control", "90 % interval", "mixed / deepspeed"]
    ]
    for comparison in comparisons:
        result = comparison.to_json()
        ratio, control, mixed = result["ratio"], result["control"], result["mixed_ratio"]
        rows.append(
            [comparison.case.op, comparison.case.memory, comparison.case.use()]
            + [f"{statistics.median(rates):.2f}" for rates in (comparison.ours, comparison.theirs)]
            + [f"{ratio['median']:.3f}", span(ratio["quartiles"]), span(ratio["interval90"])]
            + [f"{control['median']:.3f}", span(control["interval90"])]
            + [f"{mixed['median']:.3f}" if mixed else ""]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", metavar="DIR", type=Path, help="on the drive to measure")
    parser.add_argument("--size", type=parse_size, default="2GiB", help="of the file (2GiB)")
    parser.add_argument("--seconds-per-slice", type=float, default=0.5, metavar="S", help="(0.5)")
    parser.add_argument("--rounds", type=int, default=60, help="of three slices each (60)")
    parser.add_argument("--ops", nargs="+", choices=OPS, default=OPS, help="(all)")
    parser.add_argument("--memories", nargs="+", choices=MEMORIES, default=MEMORIES, help="(both)")
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
    if not sluice.run("read", 0.1, Queue())["direct"]:
        sys.exit(f"aio_peer.py: {arguments.directory}: its file system has no direct I/O")

    locker = aio.aio_handle()
    example = torch.empty(0, dtype=torch.uint8)
    makers = {
        "pinned": lambda count: locker.new_cpu_locked_tensor(count, example),
        "unpinned": lambda count: torch.empty(count, dtype=torch.uint8),
    }
    largest_tile = max(settings_axes(arguments.size, MIB)["tile"])
    buffers = {memory: Buffers(makers[memory], largest_tile) for memory in MEMORIES}
    for memory in MEMORIES:
        progress.show(f"comparing what DeepSpeed reads with the file, {memory} memory")
        verify(aio, path, arguments.size, buffers[memory])
        pattern = buffers[memory].pattern
        contents = bytearray(file_bytes(path, 0, pattern.numel()))
        pattern.copy_(torch.frombuffer(contents, dtype=torch.uint8))

    def comparison_with_best(case: Case) -> Comparison:
        def make(settings: Settings) -> DeepSpeed:
            return DeepSpeed(aio, path, arguments.size, case, buffers[case.memory], settings)

        def show(text: str) -> None:
            progress.show(f"sweep of DeepSpeed, {case}: {text}")

        best = Sweep(make, settings_axes(arguments.size, case.least_tile), show).best()
        queue = sluice.best(case.op, lambda text: progress.show(f"sweep of Sluice, {case}: {text}"))
        return Comparison(case, queue, best, make(best))

    cases = [of for of in CASES if of.op in arguments.ops and of.memory in arguments.memories]
    comparisons = [comparison_with_best(case) for case in cases]

    for number in range(arguments.rounds):
        for comparison in comparisons:
            progress.show(f"round {number + 1} of {arguments.rounds}: {comparison.case}")
            comparison.run_round(sluice, arguments.seconds_per_slice, number % 2 == 1)
    progress.clear()

    print(f"{arguments.rounds} rounds of slices of {arguments.seconds_per_slice:g} s")
    print(table(comparisons))
    for comparison in comparisons:
        queue = f"{size_text(comparison.queue.block)} x {comparison.queue.depth}"
        print(f"{comparison.case}: sluice {queue}, deepspeed {comparison.settings}")
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
                str(of.case): shlex.join(
                    sluice.command(of.case.op, arguments.seconds_per_slice, of.queue)
                )
                for of in comparisons
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
