"""The two sides of bench/nvme_rows.py: `sluice nvme bench` and fio on the same file, in slices."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paired import MIB, size_text


@dataclass(frozen=True)
class Load:
    """A load for both sides."""

    op: str
    backend: str
    block: int = MIB
    depth: int = 32
    io_threads: int = 8  # of the backend threads only, which has no depth
    access: str = "sequential"

    def __str__(self) -> str:
        return f"{self.op} {self.backend}"

    def settings(self) -> str:
        queue = f"{self.io_threads} threads" if self.backend == "threads" else str(self.depth)
        return f"{size_text(self.block)} x {queue}"


class Drive:
    """Runs either side on one file.

    Sluice gets the file by its name, not its directory: in a directory it would find what fio
    wrote, and fill the file again before every slice.
    """

    def __init__(self, program: Path, directory: Path, slice_seconds: float) -> None:
        self.program = program
        self.directory = directory
        self.file = directory / "bench.sluice"
        self.slice = slice_seconds

    def make_file(self, size: int) -> None:
        if self.file.exists() and self.file.stat().st_size >= size:
            return
        line = [str(self.program), "nvme", "bench", str(self.directory), "--seconds", "0.1"]
        if not last_object([*line, "--size", str(size), "--json"])["direct"]:
            sys.exit(f"nvme_rows.py: {self.directory}: its file system has no direct I/O")

    def sluice_line(self, load: Load, size: int, *more: object) -> list[str]:
        line = [self.program, "nvme", "bench", self.file, "--overwrite", "--size", size]
        line += ["--op", load.op, "--access", load.access, "--backend", load.backend]
        line += ["--block", load.block, "--depth", load.depth, "--io-threads", load.io_threads]
        return [str(part) for part in [*line, *more, "--json"]]

    def slice_line(self, load: Load, size: int) -> list[str]:
        return self.sluice_line(load, size, "--seconds", self.slice)

    def beside_fio_line(self, load: Load, size: int, rounds: int) -> list[str]:
        seconds = ["--slice", self.slice, "--seconds", rounds * self.slice]
        return self.sluice_line(load, size, "--fio", *seconds)

    def sluice(self, load: Load, size: int) -> float:
        """Decimal GB/s of one slice."""
        return last_object(self.slice_line(load, size))["GBps"]

    def fio_line(self, load: Load, size: int) -> list[str]:
        """As engine/cli/src/nvme/bench/fio.cpp has it, so that both ways of comparing ask the same."""
        access = {"read": "read", "write": "write"}.get(load.op, "rw")
        line = ["fio", "--name=peer", f"--filename={self.file}"]
        line += [f"--rw={'rand' if load.access == 'random' else ''}{access}", f"--bs={load.block}"]
        line += [f"--size={size}", "--direct=1", f"--runtime={1000 * self.slice:.0f}ms"]
        line += ["--time_based", "--invalidate=0", "--norandommap", "--randrepeat=0"]
        line += ["--group_reporting", "--thread", "--output-format=json"]
        if load.backend != "threads":
            return [*line, f"--ioengine={load.backend}", f"--iodepth={load.depth}"]
        # As many threads as ours has, each with one request, each in a part of its own.
        part = size // load.io_threads // load.block * load.block
        line += ["--ioengine=psync", "--iodepth=1", f"--numjobs={load.io_threads}"]
        return [*line, f"--offset_increment={part}"]

    def fio(self, load: Load, size: int) -> float:
        """Decimal GB/s of one slice."""
        out = run(self.fio_line(load, size), fio_environment())
        job = json.loads(out[out.index("{") :])["jobs"][0]  # notes may come before the object
        moved = sum(job[direction]["io_bytes"] for direction in ("read", "write"))
        milliseconds = max(job[direction]["runtime"] for direction in ("read", "write"))
        return 1e-6 * moved / milliseconds

    def fio_command(self, load: Load, size: int) -> str:
        return "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 " + shlex.join(self.fio_line(load, size))


def fio_environment() -> dict[str, str]:
    # fio's buffers on huge pages, as ours are: else the drive splits its large blocks, and what is
    # compared is the page size of the buffers.
    return {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def run(line: list[str], environment: dict[str, str] | None = None) -> str:
    try:
        done = subprocess.run(line, capture_output=True, text=True, env=environment)
    except FileNotFoundError:
        sys.exit(f"nvme_rows.py: {line[0]} is not there")
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        sys.exit(f"nvme_rows.py: {shlex.join(line)} failed: {said}")
    return done.stdout


def last_object(line: list[str]) -> dict:
    return json.loads(run(line).splitlines()[-1])
