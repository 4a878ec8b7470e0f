"""Compares `sluice nvme bench` with DeepSpeed's asynchronous I/O operator, on the same file.

bench/peers/README.md says what is compared and how; bench/peers/setup.sh makes what is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from peer_environment import REPOSITORY, deepspeed, torch, versions
from deepspeed.ops.op_builder import AsyncIOBuilder

from deepspeed_aio import STATES, SWAP_TILES, Buffers, Case, DeepSpeed, Settings
from deepspeed_aio import file_bytes, verify
from paired import KIB, MIB, Progress, folder_on_drive, machine, parse_size, quotients, size_text, span, summarize
from rounds import Steps, alternate, best_of, sweep

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
    reads_per_write: int = 3

    def __str__(self) -> str:
        return f"{size_text(self.block)} x {self.depth}, {self.reads_per_write} reads in a row"


def queues(op: str) -> list[Queue]:
    orders = (3, 16) if op == "swap" else (3,)  # the order is one of reads and writes
    blocks = [128 * KIB << i for i in range(4)]
    return [Queue(block, 8 << i, order) for block in blocks for i in range(3) for order in orders]


class Sluice:
    """Our side: a process for each slice, which measures its own time without its start."""

    def __init__(self, program: Path, directory: Path, size: int) -> None:
        self.program = program
        self.directory = directory
        self.size = size

    def command(self, op: str, seconds: float, queue: Queue) -> list[str]:
        line = [str(self.program), "nvme", "bench", str(self.directory), "--op", op]
        line += ["--block", str(queue.block), "--depth", str(queue.depth)]
        if op in ("swap", "mixed"):
            line += ["--reads-per-write", str(queue.reads_per_write)]
        return [*line, "--size", str(self.size), "--seconds", str(seconds), "--json"]

    def rate(self, op: str, seconds: float, queue: Queue) -> float:
        return self.run(op, seconds, queue)["GBps"]

    def run(self, op: str, seconds: float, queue: Queue) -> dict:
        done = subprocess.run(self.command(op, seconds, queue), capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"aio_peer.py: sluice nvme bench failed: {done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])

    def best(self, case: Case, progress: Progress) -> Queue:
        """Found as the other side's settings are."""
        steps = Steps(progress, f"sweep of Sluice, {case}")

        def rate(queue: Queue) -> float:
            return self.rate(case.op, SWEEP_SECONDS, queue)

        all_of_them = queues(case.op)
        steps.expect("every setting", SWEEP_PASSES * len(all_of_them))
        rates = sweep(all_of_them, rate, SWEEP_PASSES, steps)
        finalists = sorted(rates, key=lambda of: statistics.median(rates[of]))[-FINALISTS:]
        steps.expect("the best of them", FINAL_ROUNDS * len(finalists))
        return best_of(sweep(finalists, rate, FINAL_ROUNDS, steps))

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
    rates: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # GB/s, by side

    def sides(self, sluice: Sluice, seconds: float) -> dict[str, Callable[[], float]]:
        sides = {
            "sluice": lambda: sluice.rate(self.case.op, seconds, self.queue),
            "deepspeed": lambda: self.peer.run(seconds),
            "deepspeed_again": lambda: self.peer.run(seconds),
        }
        if self.case.op == "swap":
            sides["sluice_mixed"] = lambda: sluice.rate("mixed", seconds, self.queue)
        return sides

    def to_json(self) -> dict:
        def ratio_of(side: str) -> dict | None:
            if side not in self.rates:
                return None
            return summarize(quotients(self.rates[side], self.rates["deepspeed"]))

        return {
            **dataclasses.asdict(self.case),
            "sluice_settings": dataclasses.asdict(self.queue),
            "settings": dataclasses.asdict(self.settings),
            "deepspeed_call": str(self.settings),
            **{f"{side}_GBps": rates for side, rates in self.rates.items()},
            "ratio": ratio_of("sluice"),
            "control": ratio_of("deepspeed_again"),
            "mixed_ratio": ratio_of("sluice_mixed"),
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
            + [f"{statistics.median(rates):.2f}" for rates in (comparison.rates["sluice"], comparison.rates["deepspeed"])]
            + [f"{ratio['median']:.3f}", span(ratio["quartiles"]), span(ratio["interval90"])]
            + [f"{control['median']:.3f}", span(control["interval90"])]
            + [f"{mixed['median']:.3f}" if mixed else ""]
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", metavar="DIR", type=folder_on_drive, help="on the drive to measure")
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


def report(arguments: argparse.Namespace, sluice: Sluice, comparisons: list[Comparison]) -> None:
    """Writes the comparisons, and with what they were made, to --out."""
    content = {
        "machine": machine(arguments.directory),
        "versions": {"sluice": sluice.version(), **versions()},
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
    arguments.out.write_text(json.dumps(content, indent=2) + "\n")


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
        return Comparison(case, sluice.best(case, progress), best, make(best))

    cases = [of for of in CASES if of.op in arguments.ops and of.memory in arguments.memories]
    comparisons = [comparison_with_best(case) for case in cases]

    sides = {of.case: of.sides(sluice, arguments.seconds_per_slice) for of in comparisons}
    rates = alternate(sides, arguments.rounds, Steps(progress, "comparison"))
    for comparison in comparisons:
        comparison.rates = rates[comparison.case]
    progress.clear()

    print(f"{arguments.rounds} rounds of slices of {arguments.seconds_per_slice:g} s")
    print(table(comparisons))
    for comparison in comparisons:
        print(f"{comparison.case}: sluice {comparison.queue}; deepspeed {comparison.settings}")
    if arguments.out:
        report(arguments, sluice, comparisons)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        os._exit(130)  # DeepSpeed aborts when a handle goes while its transfers are in flight
