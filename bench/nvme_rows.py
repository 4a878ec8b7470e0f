#!/usr/bin/env python3
"""Measures what `sluice nvme` reaches against fio and its other bounds, row by row.

bench/README.md says what is needed, docs/benchmarks.md how a ratio is measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import swap_bound
from drive_sides import Drive, Load, last_object, run
from engine_instructions import instructions_of
from paired import GIB, KIB, MIB, Progress, few, folder_on_drive, machine, output_of, parse_size, quotients
from paired import size_text, summarize
from rounds import Steps, alternate, best_of, sweep
from row_report import calls_line, markdown, ratio_line, scaled, slices_line, text_table, value_line

REPOSITORY = Path(__file__).resolve().parent.parent

OPS = ("read", "write", "mixed")
BACKENDS = ("io_uring", "libaio", "threads")
BARS = {"io_uring": 0.98, "libaio": 0.97, "threads": 0.90}
LOADS = [Load(op, backend) for backend in BACKENDS for op in OPS]

CHUNK_ROUNDS = 4  # of one call with --fio; even, so that either order is as frequent
SWEEP_PASSES = 3
SURFACE_PASSES = 10
SURFACE_BLOCKS = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
TENSORS = 10000
SWAP_BLOCK = 256 * KIB  # the default of sluice
MEMORY_RUNS = 5
MEMORY_BARS = {128 * KIB: 0.95, 4 * KIB: 0.90}  # of the shape tensor
STARTS = 20
WHOLE = ("--abbrev=40", "--exclude=*")  # of a commit, its whole name and no tag


@dataclass
class Context:
    drive: Drive
    io_bench: Path
    size: int
    swap_size: int
    rounds: int
    steps: Steps
    rows: dict  # those that are finished

    def passes(self, wanted: int) -> int:
        return max(1, min(wanted, self.rounds // 2))  # fewer only in trials


def measure_same(context: Context) -> list[dict]:
    return beside_fio(context, LOADS, BARS, "GBps", "GB/s")


def measure_random(context: Context) -> list[dict]:
    loads = [Load("read", backend, 4 * KIB, 64, access="random") for backend in BACKENDS[:2]]
    return beside_fio(context, loads, {"io_uring": 0.95}, "iops", "IOPS")


def beside_fio(context: Context, loads: list[Load], bars: dict, key: str, unit: str) -> list[dict]:
    """By `sluice nvme bench --fio`, which alternates by itself. Its calls are short and the loads
    take turns, so that all of them see the same moods of the drive."""
    rounds = min(CHUNK_ROUNDS, context.rounds)
    calls = math.ceil(context.rounds / rounds)
    commands = {load: context.drive.beside_fio_line(load, context.size, rounds) for load in loads}
    results: dict[Load, list[dict]] = {load: [] for load in loads}
    context.steps.expect(f"calls of {rounds} rounds", calls * len(loads))
    for number in range(calls):
        for load in loads:
            context.steps.step(f"rounds from {number * rounds + 1} of {calls * rounds}, {load}")
            results[load].append(last_object(commands[load]))
    return [
        calls_line(str(load), results[load], key, unit, bars.get(load.backend), commands[load])
        for load in loads
    ]


def measure_best(context: Context) -> list[dict]:
    drive, size = context.drive, context.size
    runs = {"sluice": drive.sluice, "fio": drive.fio}
    passes = context.passes(SWEEP_PASSES)
    slices = passes * len(runs) * sum(len(settings_of(load)) for load in LOADS)
    context.steps.expect("sweep", slices)
    cases, extras = {}, {}
    for load in LOADS:
        candidates = [(side, setting) for side in runs for setting in settings_of(load)]
        rates = sweep(candidates, lambda of: runs[of[0]](of[1], size), passes, context.steps)
        ours, fio = (best_of(rates, lambda of, side=side: of[0] == side)[1] for side in runs)
        run_fio = partial(drive.fio, fio, size)
        cases[load] = {"ours": partial(drive.sluice, ours, size), "fio": run_fio, "again": run_fio}
        extras[load] = {
            "note": f"sluice {ours.settings()}, fio {fio.settings()}",
            "sweep_GBps": {f"{side} {of.settings()}": each for (side, of), each in rates.items()},
            "commands": [shlex.join(drive.slice_line(ours, size)), drive.fio_command(fio, size)],
        }
    slices = alternate(cases, context.rounds, context.steps)
    return [slices_line(str(of), slices[of], BARS[of.backend], **extras[of]) for of in LOADS]


def settings_of(load: Load) -> list[Load]:
    name, values = "depth", (8, 16, 32, 64)
    if load.backend == "threads":
        name, values = "io_threads", (4, 8, 16)
    blocks = (256 * KIB, MIB, 4 * MIB)
    return [dataclasses.replace(load, block=b, **{name: v}) for b in blocks for v in values]


def measure_cpu(context: Context) -> list[dict]:
    """By call of the row `same`: of one slice, what fio says of its share is too coarse."""
    if "same" not in context.rows:
        sys.exit("nvme_rows.py: the row cpu is computed from the row same, which is not there")
    lines = []
    for measured in context.rows["same"]["lines"]:
        if measured["case"].endswith("threads"):
            continue
        ours, fio = measured["cpu_s_per_GiB"].values()
        medians = statistics.median(ours), statistics.median(fio)
        ratio = summarize(quotients(ours, fio))
        more = {"at_most": True, "commands": measured["commands"]}
        lines.append(ratio_line(measured["case"], *medians, "s/GiB", ratio, 1.1, **more))
    return lines


def measure_memory(context: Context) -> list[dict]:
    line = [str(context.io_bench), "--benchmark_format=json"]
    if context.rounds < MEMORY_RUNS:
        line.append("--benchmark_min_time=0.05")  # a trial
    context.steps.expect("io_bench", MEMORY_RUNS)
    benches: dict[str, list[dict]] = {}
    for number in range(MEMORY_RUNS):
        context.steps.step(f"run {number + 1} of {MEMORY_RUNS}")
        for bench in json.loads(run(line))["benchmarks"]:
            benches.setdefault(bench["name"], []).append(bench)
    return [memory_line(name, runs, shlex.join(line)) for name, runs in benches.items()]


def memory_line(name: str, runs: list[dict], command: str) -> dict:
    # read/io_uring/tensor/block:4096/depth:32/manual_time
    op, backend, shape, block = re.match(r"(\w+)/(\w+)/(\w+)/block:(\d+)/", name).groups()
    ratios = [bench["ratio"] for bench in runs]
    medians = (statistics.median(bench[key] for bench in runs) for key in ("GBps", "bound_GBps"))
    bar = MEMORY_BARS[int(block)] if shape == "tensor" else None
    case = f"{op} {backend} {shape} {size_text(int(block))}"
    return ratio_line(case, *medians, "GB/s", few(ratios), bar, commands=[command])


def measure_callgrind(context: Context) -> list[dict]:
    accesses = ("sequential", "random")
    loads = [Load("read", of, 4 * KIB, access=access) for of in BACKENDS[:2] for access in accesses]
    context.steps.expect("valgrind", len(loads))
    lines = []
    for load in loads:
        case = f"{load} {load.access} {size_text(load.block)}"
        context.steps.step(case)
        found = instructions_of(partial(context.drive.sluice_line, load, context.size))
        lines.append({"case": case, "unit": "instr", **found})
    return lines


def measure_swap(context: Context) -> list[dict]:
    """One process of ours runs on through all the tensors, beside fio with its block and depth. The
    surface says how the other blocks compare with that one."""
    drive, size, rounds = context.drive, context.swap_size, context.rounds
    requests = swap_bound.requests_of(swap_bound.tensor_sizes(TENSORS, size), SWAP_BLOCK)
    drive.make_file(size)
    loads = [Load("mixed", "io_uring", block) for block in SURFACE_BLOCKS]
    passes = context.passes(SURFACE_PASSES)
    context.steps.expect("surface of fio", passes * len(loads))
    rates = sweep(loads, lambda load: drive.fio(load, size), passes, context.steps)
    beside = rates[Load("mixed", "io_uring", SWAP_BLOCK)]
    surface = {of.block: statistics.median(quotients(each, beside)) for of, each in rates.items()}

    context.steps.expect("one call", 1)
    context.steps.step(f"{rounds} rounds, about {rounds * 3 * (drive.slice + 0.5):.0f} s")
    line = drive.beside_fio_line(Load("swap", "io_uring", SWAP_BLOCK), size, rounds)
    line += ["--tensors", str(TENSORS)]
    result = last_object(line)
    commands = [shlex.join(line), *(drive.fio_command(load, size) for load in loads)]
    return swap_lines(result, surface, requests, commands)


def swap_lines(result: dict, surface: dict, requests: Counter, commands: list[str]) -> list[dict]:
    fio, moved = result["fio"], result["read_bytes"] + result["written_bytes"]
    step = 2 * swap_bound.STATES * swap_bound.total_bytes(requests)
    ours_KiB = moved / (result["iops"] * result["seconds"]) / KIB
    bound_KiB = swap_bound.total_bytes(requests) / requests.total() / KIB
    best = max(surface, key=surface.get)
    note = f"{moved / step:.1f} steps of {step / GIB:.2f} GiB; a request has {ours_KiB:.0f} KiB, "
    note += f"in the bound {bound_KiB:.0f} KiB"
    # As fast as so many times fio with our block.
    peers = [
        (f"swap / fio's best, {size_text(best)}", surface[best], None, ""),
        ("swap / its bound", swap_bound.bound(requests, surface), 0.90, note),
    ]
    more = {"control": fio["control"], "surface": surface, "commands": commands}
    lines = []
    for case, factor, bar, note in peers:
        rates, ratio = (result["GBps"], factor * fio["GBps"]), scaled(fio["ratio"], 1 / factor)
        lines.append(ratio_line(case, *rates, "GB/s", ratio, bar, note=note, **more))
    return lines


def measure_tune(context: Context) -> list[dict]:
    """Rates are the geometric means of read, write and mixed, which tune goes by."""
    drive, size = context.drive, context.size
    tuned, seconds, command = tuned_setting(context)
    passes = context.passes(SWEEP_PASSES)
    settings = tune_settings()
    context.steps.expect("sweep", passes * len(settings))
    rates = sweep(settings, lambda of: mean_rate(drive, of, size), passes, context.steps)
    best = best_of(rates)
    cases = {
        "tuned": {
            "tuned": partial(mean_rate, drive, tuned, size),
            "best": partial(mean_rate, drive, best, size),
            "again": partial(mean_rate, drive, best, size),
        }
    }
    slices = alternate(cases, context.rounds, context.steps)["tuned"]
    more = {
        "note": f"tuned {tuned.settings()}, the sweep's best {best.settings()}",
        "sweep_GBps": {of.settings(): each for of, each in rates.items()},
        "commands": [shlex.join(drive.slice_line(of, size)) for of in (tuned, best)],
    }
    return [
        value_line("time that tune takes", seconds, "s", 60, commands=[command]),
        slices_line("tuned / best", slices, 0.95, **more),
    ]


def tuned_setting(context: Context) -> tuple[Load, float, str]:
    context.steps.expect("sluice nvme tune", 1)
    context.steps.step("about 50 s")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "tuned.json"
        line = [str(context.drive.program), "nvme", "tune", str(context.drive.file), "--overwrite"]
        line += ["--size", str(context.size), "--out", str(out)]
        begin = time.perf_counter()
        run(line)
        seconds = time.perf_counter() - begin
        aio = json.loads(out.read_text())["aio"]
    return Load("read", "auto", aio["block_size"], aio["queue_depth"]), seconds, shlex.join(line)


def tune_settings() -> list[Load]:
    """The settings that tune chooses from (tune_settings in nvme/src/measure/tuner.cpp)."""
    settings = [(64 * KIB << i, 1 << j) for i in range(8) for j in range(8)]
    return [Load("read", "auto", *of) for of in settings if of[0] * of[1] <= 64 * MIB]


def mean_rate(drive: Drive, setting: Load, size: int) -> float:
    return statistics.geometric_mean(
        drive.sluice(dataclasses.replace(setting, op=op), size) for op in OPS
    )


def measure_start(context: Context) -> list[dict]:
    line = [str(context.drive.program), "nvme", "bench", "--help"]
    context.steps.expect("sluice nvme bench --help", STARTS)
    times = []
    for _ in range(STARTS):
        context.steps.step("start")
        begin = time.perf_counter()
        run(line)
        times.append(1e3 * (time.perf_counter() - begin))
    more = {"commands": [shlex.join(line)], "all": times}
    shown = {"median": statistics.median(times), f"longest of {STARTS}": max(times)}
    return [value_line(case, value, "ms", 50, **more) for case, value in shown.items()]


@dataclass(frozen=True)
class Row:
    title: str
    measure: Callable[[Context], list[dict]]
    peer: str = "fio"


ROWS = {
    "same": Row("The same settings: blocks of 1 MiB, depth 32, sequential", measure_same),
    "best": Row("The best settings of each, sequential", measure_best),
    "random": Row("Random reads of 4 KiB, depth 64", measure_random),
    "cpu": Row("CPU time at the same settings", measure_cpu),
    "memory": Row("A file in memory, beside a bare loop", measure_memory, "bare loop"),
    "callgrind": Row("Instructions of the engine for each request", measure_callgrind, "-"),
    "swap": Row(f"The states of {TENSORS} tensors: read, touch, write back", measure_swap, "peer"),
    "tune": Row("Settings that tune finds, beside the best of a full sweep", measure_tune, "best"),
    "start": Row("Time that `sluice nvme bench --help` takes", measure_start, "-"),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", metavar="DIR", type=folder_on_drive, nargs="?", help="on the drive")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every ratio, and the facts")
    parser.add_argument("--rows", type=row_names, metavar="ROW,...", help=",".join(ROWS))
    parser.add_argument("--slices", type=int, default=60, help="of each side (60)")
    parser.add_argument("--slice", type=float, default=0.3, metavar="S", help="its seconds (0.3)")
    parser.add_argument("--size", type=parse_size, default="2GiB", help="of the file (2GiB)")
    parser.add_argument("--swap-size", type=parse_size, default="8GiB", help="for swap (8GiB)")
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "build" / "bin", metavar="DIR")
    parser.add_argument("--clean", action="store_true", help="remove the file afterwards")
    parser.add_argument("--markdown", type=Path, metavar="FILE.json", help="print its tables")
    arguments = parser.parse_args()
    if arguments.markdown:
        return arguments
    if not arguments.directory or not arguments.out:
        parser.error("DIR and --out are needed, or --markdown")
    if arguments.slices < 1 or not 0.1 <= arguments.slice <= 1:
        parser.error("--slices: at least 1; --slice: 0.1 to 1")
    return arguments


def row_names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in ROWS:
            raise argparse.ArgumentTypeError(f"{name}: expected one of {', '.join(ROWS)}")
    return [name for name in ROWS if name in names]  # cpu after same


def measure_row(name: str, context: Context) -> dict:
    facts = {
        **machine(context.drive.directory),
        "fio": output_of("fio", "--version"),
        "sluice": output_of(context.drive.program, "--version"),
        "commit": output_of("git", "-C", REPOSITORY, "describe", "--always", "--dirty", *WHOLE),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(sys.argv),
    }
    load_before = os.getloadavg()[0]
    row = ROWS[name]
    lines = row.measure(context)
    facts["load_average"] = [load_before, os.getloadavg()[0]]
    return {"title": row.title, "peer": row.peer, "facts": facts, "lines": lines}


def write_whole(path: Path, rows: dict) -> None:
    """Under another name first, so that an interrupt leaves the rows that were there."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    unfinished.replace(path)


def main() -> None:
    arguments = parse_arguments()
    if arguments.markdown:
        print(markdown(json.loads(arguments.markdown.read_text())["rows"]))
        return
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else {}
    names = arguments.rows or [name for name in ROWS if name not in rows]
    drive = Drive(arguments.bin / "sluice", arguments.directory, arguments.slice)
    drive.make_file(arguments.size)
    progress = Progress()
    for number, name in enumerate(names):
        steps = Steps(progress, f"row {name} ({number + 1} of {len(names)})")
        settings = (arguments.size, arguments.swap_size, arguments.slices)
        context = Context(drive, arguments.bin / "io_bench", *settings, steps, rows)
        rows[name] = measure_row(name, context)
        write_whole(arguments.out, {of: rows[of] for of in ROWS if of in rows})
        progress.clear()
        print(text_table(rows[name]), end="\n\n", flush=True)
    if arguments.clean:
        drive.file.unlink()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
