"""Row 10: a loop in Python that trains a Llama by sluice.initialize, beside FSDP2 and DeepSpeed's ZeRO-3, all offloaded to the host."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpu.row import Row, few_line, figure
from gpu.tests import wheels_of
from gpu.training import Run, rate_of, seconds_for_run, watched

KI = 1024
SIDE = Path(__file__).resolve().parent.parent / "peers" / "llama_loop.py"
# That runs took on an H100, with their start, and some more; of 8 B all are ours.
NEEDED_SECONDS = {"sluice": 35.0, "fsdp": 48.0, "deepspeed": 67.0, "resident": 25.0}
NEEDED_SECONDS_OF_8B = 95.0
TRACE_SECONDS = 20.0  # by estimate: one more step of ours under the profiler, and its file
WARM_STEPS = 2
PEERS = ("fsdp", "deepspeed", "resident")
BARS = {8: 1.6, 32: 2.0}  # of what offloads, by Ki tokens a step


@dataclass(frozen=True)
class Llama:
    """The fields of Shape in llama_loop.py."""

    layers: int
    width: int
    inner: int
    heads: int
    groups: int
    vocabulary: int
    length: int

    @property
    def parameters(self) -> int:
        size = self.width // self.heads
        block = 2 * self.width**2 + 2 * self.width * self.groups * size + 3 * self.width * self.inner
        return self.layers * (block + 2 * self.width) + (2 * self.vocabulary + 1) * self.width


SHAPES = {
    "1.3 B": Llama(24, 2048, 5504, 16, 16, 32000, 4 * KI),
    "8 B": Llama(32, 4096, 14336, 32, 8, 128256, 4 * KI),
}
TINY = Llama(2, 64, 128, 4, 2, 256, 32)


@dataclass(frozen=True)
class Case:
    name: str
    shape: Llama
    sequences: int  # of a micro-batch
    accumulation: int
    steps: int
    recompute: bool  # blocks in backward, as a user does where activations do not fit
    peers: tuple[str, ...]
    ratio: float = 1.0  # of our offload_optimizer

    @property
    def tokens(self) -> int:
        return self.accumulation * self.sequences * self.shape.length

    @property
    def bar(self) -> float | None:
        return BARS.get(self.tokens // KI) if self.name == "1.3 B" else None

    def needed_seconds(self, side: str) -> float:
        return NEEDED_SECONDS_OF_8B if self.name == "8 B" else NEEDED_SECONDS[side]

    def __str__(self) -> str:
        how = ", blocks computed again" if self.recompute else ""
        how += f", ratio {self.ratio:g}" if self.ratio != 1 else ""
        return f"Llama {self.name}, {self.tokens:,} tokens a step{how}"


def cases_of(row: Row) -> list[Case]:
    peers = tuple(name for name in PEERS if name != "deepspeed" or importlib.util.find_spec(name))
    if "deepspeed" not in peers:
        row.lacks("DeepSpeed: it is not installed here")
    if row.place.rehearsal:
        tiny = Case("tiny", TINY, 2, 2, 5, True, peers)
        return [tiny, replace(tiny, peers=(), ratio=0.0)]
    small, large = SHAPES["1.3 B"], SHAPES["8 B"]
    return [
        Case("1.3 B", small, 2, 4, 6, False, peers),
        Case("1.3 B", small, 2, 1, 8, False, peers),
        Case("1.3 B", small, 2, 1, 8, False, (), ratio=0.0),
        Case("1.3 B", small, 8, 1, 6, True, peers),
        # Peers keep 16 bytes of a parameter and more in host memory: 8 B fits ours only, unless the host is large.
        Case("8 B", large, 2, 4, 4, True, ()),
        Case("8 B", large, 2, 1, 4, True, ()),
    ]


def python_loops(row: Row) -> None:
    if importlib.util.find_spec("torch") is None:
        row.lacks("PyTorch: this Python has none")
        return
    wheels = wheels_of(row.place)
    if not wheels and importlib.util.find_spec("sluice") is None:
        row.lacks("the package sluice: the bundle has no wheel, and this Python does not have it")
        return
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-", dir=row.place.drive) as folder:
        for wheel in wheels[-1:]:
            zipfile.ZipFile(wheel).extractall(Path(folder) / "package")
        measure(row, Path(folder))


def measure(row: Row, folder: Path) -> None:
    tables = {peer: row.table(f"tokens a second in Python, beside {peer}", peer) for peer in PEERS}
    alone = row.table("tokens a second in Python, of cases without a peer")
    every = cases_of(row)
    cases = [case for case in every if row.place.wants(case)]
    if not cases:
        row.lacks(f"a case that is asked for; there are {'; '.join(map(str, every))}")
    for case in cases:
        rate = measured(row, folder, case, "sluice", has_time_for_trace(row, case))
        if rate and not case.peers:
            alone.append(figure(str(case), rate, "tokens/s"))
        for peer in case.peers:
            theirs = measured(row, folder, case, peer)
            if rate and theirs:
                bar = None if peer == "resident" else case.bar
                tables[peer].append(few_line(str(case), {"ours": [rate], "peer": [theirs]}, "tokens/s", bar))
        row.save()


def has_time_for_trace(row: Row, case: Case) -> bool:
    """Beside the runs of all sides."""
    needed = sum(case.needed_seconds(side) for side in ("sluice", *case.peers))
    return seconds_for_run(row) >= row.place.pick(needed + TRACE_SECONDS, 1.0)


def measured(row: Row, folder: Path, case: Case, side: str, traced: bool = False) -> float | None:
    """Tokens a second, if there is time for the run to end."""
    needed, there = row.place.pick(case.needed_seconds(side), 1.0), seconds_for_run(row)
    if there < needed:
        row.lacks(f"{case}: {side}: no time left, {there:.0f} s of {needed:.0f}")
        return None
    run = run_side(row, folder, side, case, traced)
    if side == "sluice" and not run.ended and not trace_path(row, case).exists():
        row.lacks(f"{case}: the trace of a step: no time left")
    return note(row, case, side, run)


def note(row: Row, case: Case, side: str, run: Run) -> float | None:
    """Keeps what a run gave; its tokens a second."""
    rate = rate_of(run, case.tokens, WARM_STEPS)
    allocated = [step["allocated_bytes"] for step in run.steps]
    row.values.setdefault(str(case), {})[side] = {
        "tokens_per_second": rate,
        "losses": run.losses,
        "seconds": run.seconds(0),
        "first_step_seconds": run.first_step_seconds,
        "host_bytes": run.host_bytes,
        "host_bytes_of_a_parameter": run.host_bytes / case.shape.parameters,
        "allocated_bytes": max(allocated, default=0),
        "ended": run.ended,
        "report": run.report,
    }
    if run.ended:
        row.lacks(f"{case}: {side}: {run.ended}")
    row.save()
    return rate


def run_side(row: Row, folder: Path, engine: str, case: Case, traced: bool) -> Run:
    report = folder / "report"
    spec = {
        "engine": engine,
        "device": row.place.pick("cuda", "cpu"),
        "model": asdict(case.shape),
        "sequences": case.sequences,
        "accumulation": case.accumulation,
        "recompute": case.recompute,
        "steps": case.steps,
        "ratio": case.ratio,
        "folder": str(folder),
        "trace": str(trace_path(row, case)) if traced else "",
        "report": str(report),
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    # The Python of the machine finds LibTorch by itself; the bundle's libraries are not for it.
    more = {"LD_LIBRARY_PATH": row.place.outer_library_path}
    if (folder / "package").is_dir():
        more["PYTHONPATH"] = str(folder / "package")
    return watched(row, [sys.executable, str(SIDE), str(path)], report, case.steps, None, more)


def trace_path(row: Row, case: Case) -> Path:
    """Beside the row's result."""
    name = re.sub(r"[^a-z0-9.]+", "-", str(case).lower().replace(",", ""))
    return row.path.with_name(f"row-10-{name}.trace.json.gz")
