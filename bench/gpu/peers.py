"""Row 6: a step beside PyTorch's FSDP2 and DeepSpeed's ZeRO-3, all offloaded to the host."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu.row import Row, few_line
from gpu.training import TINY, Model, Run, Work, gpt, inputs, rate_of, train, watched

KI = 1024
SIDE = Path(__file__).resolve().parent.parent / "peers" / "fsdp_offload.py"
LEARNING_RATE = 1e-4
LEAST_SECONDS = 75.0  # to begin a run with: its start, and GRACE_SECONDS
WARM_STEPS = 2
SMALLEST = Model("the smallest", 1, 64, 1, 64)


def buckets(size: int) -> dict:
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size")
    return dict.fromkeys(names, size) | {"stage3_param_persistence_threshold": 100_000}


@dataclass(frozen=True)
class Zero:
    """Settings of DeepSpeed beside those of the comparison."""

    name: str
    zero_optimization: dict = field(default_factory=dict, hash=False)
    pin_memory: bool = True


DEFAULTS = Zero("defaults")
# A small sweep: each once; its best is measured in full.
SWEEP = [
    Zero("overlap_comm", {"overlap_comm": True}),
    Zero("overlap_comm, buckets of 2e8", {"overlap_comm": True, **buckets(200_000_000)}),
    Zero("overlap_comm, buckets of 1e9", {"overlap_comm": True, **buckets(1_000_000_000)}),
    Zero("overlap_comm, sub_group_size 1e8", {"overlap_comm": True, "sub_group_size": 100_000_000}),
    Zero("pageable", pin_memory=False),
]
BARS = {("deepspeed", 8): 2.5, ("fsdp", 8): 1.9, ("deepspeed", 32): 3.0, ("fsdp", 32): 2.9}
MEMORY_BARS = {"deepspeed": 0.5, "fsdp": 0.75}


@dataclass(frozen=True)
class Case:
    engine: str
    work: Work
    rounds: int
    sides: tuple[str, ...] = ("ours", "peer", "again")
    zero: Zero = DEFAULTS

    def __str__(self) -> str:
        how = f" ({self.zero.name})" if self.engine == "deepspeed" else ""
        return f"{self.work.model.name}, {self.work.tokens:,} tokens a step, {self.engine}{how}"


def cases_of(row: Row) -> list[Case]:
    engines = ["fsdp", "deepspeed"]
    if importlib.util.find_spec("deepspeed") is None:
        row.lacks("DeepSpeed: it is not installed here")
        engines = ["fsdp"]
    model = row.place.pick(gpt("1.3 B", 1024), TINY)
    clipping = 1.0
    few = Work(model, *row.place.pick((8, 1, 8), (2, 1, 5)), clipping=clipping)
    many = Work(model, *row.place.pick((8, 4, 6), (2, 2, 5)), clipping=clipping)
    rounds = row.place.pick(2, 1)
    return [Case(engine, work, rounds) for work in (many, few) for engine in engines]


def best_of_sweep(row: Row, case: Case) -> Zero | None:
    """The setting of DeepSpeed with the shortest steps, each run once; None: none ran."""
    found: list[tuple[float, Zero]] = []
    for zero in row.place.pick(SWEEP, SWEEP[:1]):
        if row.seconds_left() < row.place.pick(LEAST_SECONDS, 1.0):
            row.lacks(f"sweep of DeepSpeed, {zero.name}: no time left")
            break
        run = run_side(row, "deepspeed", case.work, zero)
        if run.ended:
            row.lacks(f"sweep of DeepSpeed, {zero.name}: {run.ended}")
        if seconds := run.seconds(WARM_STEPS):
            found.append((statistics.median(seconds), zero))
    row.values.setdefault("sweep", {})[str(case)] = {zero.name: took for took, zero in found}
    row.save()
    return min(found, key=lambda one: one[0])[1] if found else None


def beside_peers(row: Row) -> None:
    """Alternating runs; what a process of the smallest model holds is taken off the memory."""
    if importlib.util.find_spec("torch") is None:
        row.lacks("PyTorch: this Python has none")
        return
    rates = row.table("tokens a second, weights and optimizer in host memory", "peer")
    memory = row.table("host memory above an idle process, bytes of a parameter", "peer")
    idle: dict[str, int] = {}
    for case in with_best(row, cases_of(row)):
        for side in ("sluice", case.engine):
            if side not in idle:
                run = run_side(row, side, Work(SMALLEST, 1, 1, 4))
                idle[side] = run.host_bytes
                if run.ended:
                    row.lacks(f"an idle process of {side}: {run.ended}")
        runs = alternating(row, case)
        if not runs["ours"] or not runs["peer"]:
            continue
        tokens = case.work.tokens
        sides = {
            side: [rate_of(run, tokens, WARM_STEPS) or 0 for run in of]
            for side, of in runs.items()
            if of
        }
        bar = BARS.get((case.engine, tokens // KI))
        rates.append(few_line(str(case), sides, "tokens/s", bar))
        memory.append(memory_line(case, runs, idle))
        row.values[str(case)] = {
            "losses": {side: [run.losses for run in of] for side, of in runs.items()},
            "idle_bytes": idle,
            "resident_bytes": {
                side: [run.peak_resident_bytes for run in of] for side, of in runs.items()
            },
        }
        row.save()


def with_best(row: Row, cases: list[Case]) -> Iterator[Case]:
    """The cases, and after each of DeepSpeed's the same with its best of the sweep."""
    for case in cases:
        yield case
        if case.engine == "deepspeed" and (best := best_of_sweep(row, case)):
            yield replace(case, zero=best)


def alternating(row: Row, case: Case) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {side: [] for side in case.sides}
    programs = {"ours": "sluice", "peer": case.engine, "again": case.engine}
    for number in range(case.rounds):
        for side in list(runs) if number % 2 == 0 else reversed(runs):
            if row.seconds_left() < row.place.pick(LEAST_SECONDS, 1.0):
                row.lacks(f"{case}: round {number + 1}, {side}: no time left")
                continue
            run = run_side(row, programs[side], case.work, case.zero)
            if run.ended:
                row.lacks(f"{case}: {programs[side]}: {run.ended}")
            if run.seconds(WARM_STEPS):
                runs[side].append(run)
            elif side == "peer":
                return {**runs, "peer": []}  # what fails once fails again
    return runs


def run_side(row: Row, program: str, work: Work, zero: Zero = DEFAULTS) -> Run:
    if program == "sluice":
        return train(row, work)
    _, model, data, _ = inputs(row.place, work)
    report = data.parent / "report"
    spec = {
        "engine": program,
        "device": row.place.pick("cuda", "cpu"),
        "model": str(model),
        "data": str(data),
        "micro_batch": work.micro_batch,
        "accumulation": work.accumulation,
        "steps": work.steps,
        "learning_rate": LEARNING_RATE,
        "clipping": work.clipping,
        "zero_optimization": zero.zero_optimization,
        "pin_memory": zero.pin_memory,
        "report": str(report),
    }
    path = data.parent / "spec.json"
    path.write_text(json.dumps(spec))
    # The Python of the machine finds LibTorch by itself; the bundle's libraries are not for it.
    more = {"LD_LIBRARY_PATH": row.place.outer_library_path}
    line = [sys.executable, str(SIDE), str(path)]
    return watched(row, line, report, work.steps, None, more)


def memory_line(case: Case, runs: dict[str, list[Run]], idle: dict[str, int]) -> dict:
    """By what the machine has less of: pinned memory is in no process's resident set."""
    programs = {"ours": "sluice", "peer": case.engine, "again": case.engine}
    parameters = case.work.model.parameters
    each = {
        side: [max(1, run.host_bytes - idle[programs[side]]) / parameters for run in of]
        for side, of in runs.items()
        if of
    }
    share = max(each["ours"]) / min(each["peer"])
    note = f"{share:.3f} of the peer's at most, bar {MEMORY_BARS[case.engine]}"
    return few_line(str(case), each, "B", None, note=note)
