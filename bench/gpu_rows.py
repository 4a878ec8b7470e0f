#!/usr/bin/env python3
"""Measures Sluice on a GPU, row by row, and runs the tests that need one; offline.

scripts/gpu_check.sh starts it, with the files of scripts/gpu_bundle.sh. Rows are processes of their
own with a limit each; a row whose result is in OUT is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu.bits import same_bits
from gpu.checkpoints import checkpoints
from gpu.links import copies, host_work
from gpu.machine import environment_for, facts_of, facts_text, gpu_query, read_bundle
from gpu.memory import endurance, largest
from gpu.peers import beside_peers
from gpu.processes import status_within
from gpu.report import markdown
from gpu.python_loops import python_loops
from gpu.row import Failed, Place, Row, read_result, write_json
from gpu.speed import steps_beside_resident
from gpu.starts import starts
from gpu.tests import run_tests
from paired import ending, folder_on_drive, parse_size

REPOSITORY = Path(__file__).resolve().parent.parent
BUNDLE = ".cache/gpu-bundle"
LEAST_SECONDS = 20.0  # to begin a row with
TESTS_SECONDS = 480.0
CLOSING_SECONDS = 15.0  # that a row is given to end by itself
NOTHING = 3  # exit status of a row without a figure
# Those with the label gpu, without a bundle, which has the list.
TESTS = ("cpu_adam_gpu_test", "offload_gpu_test", "zero_gpu_test", "gpu_compute_test", "gpu_hooks_test")
OF_A_FULL_BUILD = ("cpu_adam_gpu_test", "zero_gpu_test")  # with nvcc, and with NCCL


@dataclass(frozen=True)
class RowKind:
    title: str
    measure: Callable[[Row], None]
    needs_seconds: float  # on an H100, all of it
    cheap: bool = False  # its rehearsal takes seconds and needs no PyTorch


ROWS = {
    "1": RowKind("Copies between host and device", copies, 120, cheap=True),
    "2": RowKind("The optimizer and the drive on this host", host_work, 300, cheap=True),
    "3": RowKind("A step, offloaded and resident", steps_beside_resident, 2400),
    "4": RowKind("The largest model", largest, 1200, cheap=True),
    "5": RowKind("The same losses, resident and offloaded", same_bits, 900, cheap=True),
    "6": RowKind("A step beside PyTorch's FSDP2 and DeepSpeed", beside_peers, 2400),
    "7": RowKind("Many steps", endurance, 900, cheap=True),
    "8": RowKind("From the command to the first step", starts, 400, cheap=True),
    "9": RowKind("A step while a checkpoint is written", checkpoints, 900, cheap=True),
    "10": RowKind("A loop in Python beside PyTorch's FSDP2 and DeepSpeed", python_loops, 2400),
}


def seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"seconds above 0 and below a million, not {text}")
    return value


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, metavar="OUT", nargs="?", help="folder for the results")
    rows = f"{', '.join(ROWS)} or tests; cheap: those whose rehearsal takes seconds (all)"
    parser.add_argument("rows", metavar="ROW", nargs="*", help=rows)
    parser.add_argument("--rehearse", action="store_true", help="tiny, on the host: does it run?")
    parser.add_argument("--binaries", type=Path, metavar="DIR", help="instead of the bundle's")
    parser.add_argument("--drive", type=folder_on_drive, metavar="DIR", help="on the drive to use (OUT)")
    host_help = "budget of row 4 (what is available, less 8 GiB)"
    parser.add_argument("--host-bytes", type=parse_size, metavar="SIZE", help=host_help)
    cases_help = "of rows 3 and 10 only cases with TEXT in their names; may be given again"
    parser.add_argument("--cases", action="append", default=[], metavar="TEXT", help=cases_help)
    parser.add_argument("--row-seconds", type=seconds, help="limit of a row (what it needs)")
    whole = sum(kind.needs_seconds for kind in ROWS.values()) + TESTS_SECONDS
    whole_help = f"limit of all ({whole:.0f}: what they need)"
    parser.add_argument("--seconds", type=seconds, default=whole, help=whole_help)
    parser.add_argument("--markdown", type=Path, metavar="DIR", help="print the tables of results")
    parser.add_argument("--one", metavar="ROW", help=argparse.SUPPRESS)  # of our own processes
    arguments = parser.parse_args()
    if arguments.markdown:
        return arguments
    if not arguments.out:
        parser.error("OUT is needed, or --markdown DIR")
    arguments.rows = chosen_rows(arguments.rows, parser)
    arguments.out = arguments.out.resolve()
    arguments.drive = (arguments.drive or arguments.out).resolve()
    return arguments


def chosen_rows(names: list[str], parser: argparse.ArgumentParser) -> list[str]:
    every = ["tests", *ROWS]
    if "cheap" in names:
        names = [*names, *(name for name, kind in ROWS.items() if kind.cheap)]
        names.remove("cheap")
    if unknown := set(names) - set(every):
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    return [name for name in every if name in (names or every)]


class Check:
    """Starts the rows and keeps what came of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.out: Path = arguments.out
        self.bundle, self.binaries = find_binaries(arguments)
        self.end = time.monotonic() + arguments.seconds
        gpu = gpu_query("name") is not None
        if not gpu and not arguments.rehearse:
            sys.exit("gpu_rows.py: nvidia-smi finds no GPU; --rehearse tries all of it without one")
        self.out.mkdir(parents=True, exist_ok=True)
        arguments.drive.mkdir(parents=True, exist_ok=True)
        self.facts = facts_of(arguments.drive, self.bundle)

    def run(self) -> bool:
        """Whether every row that was asked for ended."""
        print(facts_text(self.facts), f"commit {self.facts['commit']}", sep="\n", flush=True)
        return all([self.run_row(name) for name in self.arguments.rows])

    def run_row(self, name: str) -> bool:
        path = self.out / ("tests.json" if name == "tests" else f"row-{name}.json")
        if path.exists():
            state = read_result(path)["state"]
            print(f"{path.name} is there: {state}; it is not measured again", flush=True)
            return state == "finished"
        needs = TESTS_SECONDS if name == "tests" else ROWS[name].needs_seconds
        limit = min(self.arguments.row_seconds or needs, self.end - time.monotonic())
        if limit < LEAST_SECONDS:
            print(f"{path.name}: not begun, no time left", flush=True)
            return False
        begin = time.monotonic()

        def keep(document: dict) -> dict:
            document |= {
                "rehearsal": self.arguments.rehearse,
                "command": command_of(name, self.arguments),
                "seconds": round(time.monotonic() - begin, 1),
            }
            write_json(path, document)
            return document

        document = keep(self.tests(limit, keep) if name == "tests" else self.measured(name, limit))
        why = f": {document['why']}" if document["why"] else ""
        print(f"{path.name}: {document['state']} in {document['seconds']} s{why}", flush=True)
        return document["state"] == "finished"

    def tests(self, limit: float, keep: Callable[[dict], dict]) -> dict:
        built = [name for name in TESTS if name not in OF_A_FULL_BUILD or (self.binaries / name).exists()]
        names = self.bundle["tests"] if self.bundle else built
        place = place_of(self.arguments, self.binaries)
        deadline = time.monotonic() + limit - CLOSING_SECONDS
        cut = {"state": "killed", "why": "before its last program ended", "facts": self.facts}
        log = self.out / "tests.log"
        results = run_tests(place, names, log, deadline, lambda so_far: keep(cut | so_far))
        good = results["passed"] or self.arguments.rehearse  # without a GPU they skip
        why = "" if good else "not all of them passed"
        state = "finished" if good else "failed"
        return {"state": state, "why": why, "facts": self.facts, **results}

    def measured(self, name: str, limit: float) -> dict:
        """By a process of its own, whose last word is in the partial result."""
        part = part_of(self.out, name)
        part.unlink(missing_ok=True)
        line = [sys.executable, __file__, *sys.argv[1:], "--one", name]
        line += ["--row-seconds", str(limit - CLOSING_SECONDS)]
        # The folder is ours, so that nothing stays of a row that is killed.
        with (
            tempfile.TemporaryDirectory(prefix="gpu-rows-", dir=self.arguments.drive) as folder,
            (self.out / f"row-{name}.log").open("wb") as log,
        ):
            line += ["--drive", folder]
            process = subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)
            state, why = wait_for(process, limit)
        document = json.loads(part.read_text()) if part.exists() else {"tables": [], "missing": []}
        part.unlink(missing_ok=True)
        outcome = {"row": name, "title": ROWS[name].title, "state": state, "why": why}
        return outcome | {"facts": self.facts, "commands": [], "values": {}} | document


def part_of(out: Path, name: str) -> Path:
    return out / f"row-{name}.part.json"


def find_binaries(arguments: argparse.Namespace) -> tuple[dict | None, Path]:
    if arguments.binaries:
        return None, arguments.binaries.resolve()
    folder = Path(os.environ.get("SLUICE_BUNDLE") or REPOSITORY / BUNDLE)
    bundle = read_bundle(folder)
    if bundle is None:
        sys.exit(f"gpu_rows.py: {folder}: no bundle; scripts/gpu_bundle.sh makes it; or --binaries")
    return bundle, (folder / "bin").resolve()


def place_of(arguments: argparse.Namespace, binaries: Path) -> Place:
    return Place(
        binaries=binaries,
        drive=arguments.drive,
        environment=environment_for(binaries),
        rehearsal=arguments.rehearse,
        gpu=not arguments.rehearse,
        outer_library_path=os.environ.get("LD_LIBRARY_PATH", ""),
        host_bytes=arguments.host_bytes,
        cases=tuple(arguments.cases),
    )


def wait_for(process: subprocess.Popen, limit: float) -> tuple[str, str]:
    """How it ended; at its limit it and all that it started are killed."""
    status = status_within(process, limit)
    if status is None:
        return "killed", f"at its limit of {limit:.0f} s"
    if status == NOTHING:
        return "failed", "nothing could be measured"
    return ("finished", "") if status == 0 else ("failed", f"{ending(status)}, see its log")


def command_of(name: str, arguments: argparse.Namespace) -> str:
    cases = [word for text in arguments.cases for word in ("--cases", text)]
    line = ["scripts/gpu_check.sh", *["--rehearse"] * arguments.rehearse, *cases, "OUT", name]
    return shlex.join(line)


def measure_one(arguments: argparse.Namespace) -> None:
    """A row, in a process of its own."""
    name = arguments.one
    deadline = time.monotonic() + arguments.row_seconds
    bundle, binaries = find_binaries(arguments)
    place = place_of(arguments, binaries)
    row = Row(place, part_of(arguments.out, name), deadline, facts_of(arguments.drive, bundle))
    if arguments.rehearse:
        print("REHEARSAL: no figure of this says anything\n")
    row.save()
    try:
        ROWS[name].measure(row)
    except Failed as error:
        row.lacks(str(error))
    row.save()
    row.show()
    if not any(table["lines"] for table in row.tables):
        sys.exit(NOTHING)


def main() -> None:
    arguments = parse_arguments()
    for told in (signal.SIGTERM, signal.SIGHUP):  # what was begun is removed then too
        signal.signal(told, lambda number, _: sys.exit(128 + number))
    if arguments.markdown:
        print(markdown(arguments.markdown))
    elif arguments.one:
        measure_one(arguments)
    else:
        sys.exit(0 if Check(arguments).run() else 1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # a folder that cannot be written to, a full disk
        sys.exit(f"gpu_rows.py: {error}")
