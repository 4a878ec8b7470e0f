"""A training run as a process that is watched from outside: its steps, memory and drive traffic.

Every side writes a line into `steps.jsonl` when a step has ended. The kernel's numbers of the
process are read then, in the same manner for all of them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from paired import KIB, ending

WARM_STEPS = 3  # of each run; not counted. In the first ones DeepSpeed learns the order of use
POLL_SECONDS = 0.01
STALL_SECONDS = 600.0
LAST_LINES = 12  # of what a failed side said
RESET_PEAK = "5"  # proc_pid_clear_refs(5): the peak resident set becomes the present one


class SideFailed(Exception):
    """With what the side said last."""


@dataclass(frozen=True)
class Run:
    tokens: int  # of a step
    losses: list[float]  # of all steps
    seconds: list[float]  # of the counted steps
    start_peak_bytes: int  # resident, until the counted steps begin
    peak_bytes: int  # resident, in the counted steps
    resident_bytes: int  # at the ends of the counted steps, median
    read_bytes: float  # of the drive, of a counted step, as the kernel counts
    written_bytes: float
    counted_bytes: float | None  # read and written, as Sluice counts
    busiest_seconds: float | None  # of Sluice: of a step, those in which its busiest link is busy

    @property
    def step_seconds(self) -> float:
        return statistics.median(self.seconds)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds

    @property
    def drive_bytes(self) -> float:
        return self.read_bytes + self.written_bytes


class Meter:
    """Reads what the kernel says of a process, at the end of its steps."""

    def __init__(self, process_id: int) -> None:
        self.folder = Path(f"/proc/{process_id}")
        self.start_peak = 0
        self.peak = 0
        self.resident: list[int] = []
        self.begin: tuple[int, dict[str, int]] | None = None
        self.end: tuple[int, dict[str, int]] | None = None

    def step_ended(self, count: int) -> None:
        try:
            self._look(count)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended meanwhile; the step before was the last one seen

    def _look(self, count: int) -> None:
        status = self._fields("status")
        peak, resident = KIB * status["VmHWM"], KIB * status["VmRSS"]
        now = (count, self._fields("io"))
        if self.begin is not None:
            self.end = now
            self.peak = peak
            self.resident.append(resident)
        elif count >= WARM_STEPS:
            self.start_peak = peak
            (self.folder / "clear_refs").write_text(RESET_PEAK)
            self.begin = now

    def _fields(self, name: str) -> dict[str, int]:
        found = re.findall(r"^(\w+):\s*(\d+)\b", (self.folder / name).read_text(), re.MULTILINE)
        return {field: int(number) for field, number in found}

    def per_step(self, field: str) -> float:
        (first, before), (last, after) = self.begin, self.end
        return (after[field] - before[field]) / (last - first)


def run(line: list[str], report: Path, tokens: int) -> Run:
    """Runs one side, which writes into `report`. Throws SideFailed."""
    log = report / "output.log"
    with log.open("wb") as output:
        # A group of its own, so that what it may have started ends with it.
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        meter = Meter(process.pid)
        try:
            watch(process, meter, report / "steps.jsonl")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode != 0:
        raise SideFailed(ending(process.returncode) + said_last(log))
    if meter.end is None:
        raise SideFailed("it ended too soon to be measured; more --steps are needed")
    return result(report, meter, tokens)


def watch(process: subprocess.Popen, meter: Meter, steps: Path) -> None:
    seen, since = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_SECONDS)
        count = steps.read_bytes().count(b"\n") if steps.exists() else 0
        if count > seen:
            meter.step_ended(count)
            seen, since = count, time.monotonic()
        elif time.monotonic() - since > STALL_SECONDS:
            raise SideFailed(f"no step ended for {STALL_SECONDS:.0f} s; it was killed")


def said_last(log: Path) -> str:
    lines = log.read_text(errors="replace").rstrip().splitlines()[-LAST_LINES:]
    return "".join(["; it said last:"] * bool(lines) + [f"\n    {line}" for line in lines])


def result(report: Path, meter: Meter, tokens: int) -> Run:
    steps = [json.loads(line) for line in (report / "steps.jsonl").read_text().splitlines()]
    counted = steps[WARM_STEPS:]
    links = [step["bytes"] for step in counted if "bytes" in step]
    moved = [link["nvme_read"] + link["nvme_write"] for link in links]
    return Run(
        tokens=tokens,
        losses=[step["loss"] for step in steps],
        seconds=[step["seconds"] for step in counted],
        start_peak_bytes=meter.start_peak,
        peak_bytes=meter.peak,
        resident_bytes=int(statistics.median(meter.resident)),
        read_bytes=meter.per_step("read_bytes"),
        written_bytes=meter.per_step("write_bytes"),
        counted_bytes=statistics.mean(moved) if moved else None,
        busiest_seconds=busiest_seconds(report / "report.json"),
    )


def busiest_seconds(report: Path) -> float | None:
    if not report.exists():
        return None
    return max(json.loads(report.read_text())["limits_seconds"].values())
