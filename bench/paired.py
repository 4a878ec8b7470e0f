"""Helpers of scripts that compare two programs: ratios of pairs, progress, facts of the machine."""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
PAGE = 4096
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress:
    """One line, rewritten on a terminal, else now and then a new one."""

    def __init__(self) -> None:
        self.last = 0.0

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self.last > 10:
            print(text, file=sys.stderr, flush=True)
            self.last = time.monotonic()

    def clear(self) -> None:
        if sys.stderr.isatty():
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def quotients(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below)]


def quantile(values: list[float], share: float) -> float:
    """Interpolated, as in nvme/src/measure/paired_ratios.cpp."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def summarize(ratios: list[float]) -> dict:
    draw = random.Random(1)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000)]
    return {
        "median": statistics.median(ratios),
        "quartiles": [quantile(ratios, 0.25), quantile(ratios, 0.75)],
        # Nine in ten medians of as many ratios, drawn with replacement from these, lie here.
        "interval90": [quantile(medians, 0.05), quantile(medians, 0.95)],
        "all": ratios,
    }


def few(ratios: list[float]) -> dict:
    """Summary of few ratios: their range instead of an interval."""
    return {
        "median": statistics.median(ratios),
        "quartiles": [quantile(ratios, 0.25), quantile(ratios, 0.75)],
        "range": [min(ratios), max(ratios)],
        "all": ratios,
    }


def span(ends: list[float]) -> str:
    return f"{ends[0]:.3f} - {ends[1]:.3f}"


def machine(directory: Path) -> dict:
    device = output_of("findmnt", "-no", "SOURCE", "-T", directory)
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cpus": os.cpu_count(),
        "memory_GiB": round(int(memory[1]) / MIB, 1) if memory else None,
        "kernel": os.uname().release,
        "file_system": output_of("findmnt", "-no", "FSTYPE", "-T", directory),
        # The drive under a partition or a mapped device.
        "drive": output_of("lsblk", "-sno", "MODEL,SIZE", device).split("\n")[-1].strip(),
    }


def write_result(path: Path, repository: Path, facts: dict, names: dict[str, str]) -> None:
    """With machine and commit; paths in the repository and those that `names` replaces are of this machine."""
    describe = ("git", "-C", repository, "describe", "--always", "--dirty", "--abbrev=12")
    facts = {"machine": machine(repository), "commit": output_of(*describe)} | facts
    text = json.dumps(facts, indent=2)
    for name, shown in {f"{repository}/": "", **names}.items():
        text = text.replace(name, shown)
    path.write_text(text + "\n")


def ending(status: int) -> str:
    """How a process ended, by its return code."""
    if status < 0:
        return f"killed by signal {-status}" + " (was there enough memory?)" * (status == -9)
    return f"exit status {status}"


def output_of(*line: object) -> str:
    try:
        done = subprocess.run(list(map(str, line)), capture_output=True, text=True)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def folder_on_drive(text: str) -> Path:
    """An argument: a folder on the drive to measure. It is made when it does not exist."""
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return folder


def parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)(B|KiB|MiB|GiB|TiB)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text}: expected a size such as 512MiB or 2GiB")
    return int(match[1]) * 1024 ** UNITS.index(match[2] or "B") // PAGE * PAGE


def size_text(count: int) -> str:
    """A size as a whole number of its largest unit, in the form that parse_size takes."""
    power = 0
    while power + 1 < len(UNITS) and count % 1024 ** (power + 1) == 0:
        power += 1
    return f"{count // 1024**power}{UNITS[power]}"
