"""Row 3: a step with the optimizer in host memory, beside the same model resident."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, replace

from paired import GIB, few, quotients

from gpu.row import Failed, Row, at_most, few_line, figure
from gpu.training import TINY, Model, Run, Work, gpt, inputs, rate_of, seconds_for_run, train

KI = 1024
# Bars: shares of the resident side's tokens a second, by tokens a step and clipping.
BARS = {
    (128 * KI, 0.0): 0.98,
    (128 * KI, 1.0): 0.96,
    (32 * KI, 0.0): 0.97,
    (32 * KI, 1.0): 0.92,
    (8 * KI, 0.0): 0.65,
}
EXPOSED_BARS = {128 * KI: 5.0}  # percent of a step
GAP_BAR = 2.0  # percent of the planned bytes
# Seconds of a run with its start, by tokens a step: as runs took on an H200, and some more. On an H100 they started faster.
NEEDED_SECONDS = {8 * KI: 25.0, 32 * KI: 25.0, 128 * KI: 35.0}
NEEDED_SECONDS_OF_6_7B = 95.0
MICRO_TOKENS = {"1.3 B": 8 * KI, "6.7 B": 4 * KI}  # of a micro-batch, on both sides


@dataclass(frozen=True)
class Case:
    model: Model
    tokens: int
    steps: int
    warm_steps: int
    micro_batch: int
    clipping: float = 0.0
    gpu_updates: bool = False
    ratio: float = 1.0  # of offload_optimizer: the share of the states in host memory
    threads: int = 0  # of the optimizer; 0: Sluice chooses

    @property
    def work(self) -> Work:
        accumulation = self.tokens // (self.micro_batch * self.model.length)
        own: dict = {"gpu_updates": True} if self.gpu_updates else {}
        if self.threads:
            own["threads"] = {"optimizer": self.threads}
        return Work(
            self.model,
            self.micro_batch,
            accumulation,
            self.steps,
            weights="none",
            clipping=self.clipping,
            sluice=own,
            ratio=self.ratio,
        )

    @property
    def needed_seconds(self) -> float:
        if self.model.name == "6.7 B":
            return NEEDED_SECONDS_OF_6_7B
        return NEEDED_SECONDS.get(self.tokens, 1.0)  # else of a rehearsal

    def __str__(self) -> str:
        length = self.model.length
        text = f"{self.model.name}, sequences of {length:,}, {self.tokens:,} tokens a step"
        text += f", clipping {self.clipping:g}" if self.clipping else ""
        text += f", ratio {self.ratio:g}" if self.ratio != 1 else ""
        text += f", {self.threads} threads of the optimizer" if self.threads else ""
        return text + (", gpu_updates" if self.gpu_updates else "")


def gpu_case(name: str, length: int, tokens: int, clipping: float = 0.0) -> Case:
    steps, warm = {128 * KI: (4, 1), 32 * KI: (6, 2), 8 * KI: (10, 2)}[tokens]
    micro_batch = MICRO_TOKENS[name] // length
    return Case(gpt(name, length), tokens, steps, warm, micro_batch, clipping)


def with_gpu_updates(case: Case) -> Case:
    return replace(case, gpu_updates=True)


def with_states_on_gpu(case: Case) -> Case:
    """As many as the GPU has room for."""
    return replace(case, ratio=0.0)


OURS = ("ours",)
BOTH = ("ours", "peer")
# The fixed set, in this order, each as a round of its own; then once more, in the other order of sides: the second run of a peer
# is the control of the first. plain_loop does not clip: with clipping, its rate without is the bound.
FIXED = [
    (gpu_case("1.3 B", 1024, 8 * KI), BOTH),
    (with_states_on_gpu(gpu_case("1.3 B", 1024, 8 * KI)), OURS),
    (with_gpu_updates(gpu_case("1.3 B", 1024, 8 * KI)), OURS),
    (gpu_case("1.3 B", 1024, 32 * KI), BOTH),
    (gpu_case("1.3 B", 1024, 32 * KI, 1.0), OURS),
    (with_states_on_gpu(gpu_case("1.3 B", 1024, 32 * KI, 1.0)), OURS),
    (with_gpu_updates(gpu_case("1.3 B", 1024, 32 * KI, 1.0)), OURS),
    (gpu_case("1.3 B", 1024, 128 * KI, 1.0), BOTH),
    (with_states_on_gpu(gpu_case("6.7 B", 2048, 128 * KI, 1.0)), OURS),
    (with_gpu_updates(gpu_case("6.7 B", 2048, 128 * KI, 1.0)), OURS),
    (gpu_case("6.7 B", 2048, 128 * KI, 1.0), OURS),
    (gpu_case("1.3 B", 1024, 128 * KI), OURS),
]
# As far as the row's time goes. First a GPU that keeps a tenth of the states, and an optimizer that leaves one core of 16.
FURTHER = [
    (replace(gpu_case("1.3 B", 1024, 8 * KI), ratio=0.9), OURS),
    (replace(gpu_case("1.3 B", 1024, 32 * KI, 1.0), ratio=0.9), OURS),
    (replace(gpu_case("1.3 B", 1024, 8 * KI), threads=15), OURS),
]
FURTHER += [
    (gpu_case(name, length, tokens * KI), BOTH)
    for name, length, all_tokens in (
        ("6.7 B", 2048, (128, 32, 8)),
        ("1.3 B", 2048, (128, 32, 8)),
        ("6.7 B", 1024, (128, 32, 8)),
    )
    for tokens in all_tokens
]
AGAIN = {OURS: OURS, BOTH: ("again", "ours")}
ROUNDS = [*FIXED, *((case, AGAIN[sides]) for case, sides in FIXED), *FURTHER]
FIRST = Case(TINY, 4 * TINY.length, 4, 1, 2)
CLIPPED = Case(TINY, 4 * TINY.length, 4, 1, 2, 1.0)
REHEARSED = [
    (FIRST, BOTH),
    (CLIPPED, OURS),
    (with_states_on_gpu(CLIPPED), OURS),
    (with_gpu_updates(CLIPPED), OURS),
    (replace(FIRST, threads=1), OURS),
    (Case(TINY, 2 * TINY.length, 4, 1, 2), BOTH),
    (FIRST, AGAIN[BOTH]),
]


@dataclass
class Measured:
    """Results of a case in all rounds so far."""

    rates: list[float] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


class Bench:
    def __init__(self, row: Row) -> None:
        self.row = row
        self.rates = row.table("tokens a second, optimizer in host memory", "resident")
        self.flops = row.table("model TFLOP/s, what is computed twice counted once", "resident")
        self.exposed = row.table("of a step, what is waited for: transfers and updates")
        self.gaps = row.table("gaps of the device's memory at the peak, of the planned bytes")
        self.measured: dict[Case, Measured] = {}
        self.residents: dict[Case, dict[str, list[float]]] = {}  # by resident_of()
        self.too_large: set[Model] = set()  # for the device alone

    def has_time(self, case: Case) -> bool:
        """For a run of the case to end."""
        return seconds_for_run(self.row) >= case.needed_seconds

    def take_round(self, case: Case, sides: tuple[str, ...]) -> None:
        measured = self.measured.setdefault(case, Measured())
        rates = self.residents.setdefault(resident_of(case), {"peer": [], "again": []})
        for side in sides:
            if not self.has_time(case):
                what = "offloaded" if side == "ours" else "resident"
                self.row.lacks(f"{case}, {what}: no time left")
            elif side == "ours":
                if run := self.offloaded(case):
                    measured.runs.append(run)
                    measured.rates.append(rate_of(run, case.tokens, case.warm_steps) or 0)
            elif rate := self.resident(case):
                rates[side].append(rate)
        self.report()

    def offloaded(self, case: Case) -> Run | None:
        run = train(self.row, case.work)
        if run.ended:
            self.row.lacks(f"{case}, offloaded: {run.ended}")
        return run if rate_of(run, case.tokens, case.warm_steps) else None

    def resident(self, case: Case) -> float | None:
        if self.cannot_fit(case.model):
            return None
        place, work = self.row.place, case.work
        _, model, _, _ = inputs(place, work)
        line = [place.program("plain_loop"), str(model), str(work.micro_batch)]
        line += [str(work.accumulation), str(work.steps)]
        line += ["--device", "cuda"] if place.gpu else []
        try:
            seconds = json.loads(self.row.output_of(line))["seconds"]
        except Failed as error:
            if "out of memory" in str(error):
                self.too_large.add(case.model)
            self.row.lacks(f"{case}, resident: {error}")
            return None
        return case.tokens / statistics.median(seconds[case.warm_steps :])

    def cannot_fit(self, model: Model) -> bool:
        """As it was found, or as its states alone show."""
        needed, there = 16 * model.parameters / GIB, self.row.facts["device_memory_MiB"] / 1024
        if self.row.place.gpu and needed > there:
            self.too_large.add(model)
            text = f"its states take {needed:.0f} GiB, the device has {there:.0f}"
            self.row.lacks(f"{model.name}, resident: {text}")
        return model in self.too_large

    def report(self) -> None:
        """Everything until now."""
        for table in (self.rates, self.flops, self.exposed, self.gaps):
            table.clear()
        for case, measured in self.measured.items():
            if measured.rates:
                self.add_lines(case, measured)
        self.row.save()

    def add_lines(self, case: Case, measured: Measured) -> None:
        name, tera = str(case), 1e-12 * case.model.flop_per_token
        resident = self.residents[resident_of(case)]
        peers = resident["peer"] + resident["again"]
        ours = statistics.median(measured.rates)
        line = figure(name, tera * ours, "TFLOP/s")
        if peers:
            rounds = min(len(measured.rates), len(peers))
            sides = {"ours": measured.rates[:rounds], "peer": peers[:rounds]}
            again = resident["again"]
            control = {"control": few(quotients(again, resident["peer"]))} if again and resident["peer"] else {}
            bar = BARS.get((case.tokens, case.clipping)) if case.model.name == "1.3 B" else None
            self.rates.append(few_line(name, sides, "tokens/s", bar, **control))
            line["peer"] = tera * statistics.median(peers)
        else:
            self.rates.append(figure(name, ours, "tokens/s"))
        self.flops.append(line)
        self.exposed.append(exposed_line(case, measured.runs))
        self.gaps += gap_lines(name, measured.runs)
        self.row.values[name] = {
            "parameters": case.model.parameters,
            "micro_batch": case.micro_batch,
            "first_step_seconds": [run.first_step_seconds for run in measured.runs],
            "reports": [run.report for run in measured.runs],
            "steps": [run.steps for run in measured.runs],
        }


def resident_of(case: Case) -> Case:
    return replace(case, clipping=0.0, gpu_updates=False, ratio=1.0, threads=0)


def exposed_line(case: Case, runs: list[Run]) -> dict:
    """Exposed transfer time of all links, in percent of a step: the median over the steps."""
    shares = [
        100 * sum(step["stall_seconds"].values()) / step["seconds"]
        for run in runs
        for step in run.steps[case.warm_steps :]
    ]
    share = statistics.median(shares)
    bar = EXPOSED_BARS.get(case.tokens)
    return figure(str(case), share, "%") if bar is None else at_most(str(case), share, "%", bar)


def gap_lines(case: str, runs: list[Run]) -> list[dict]:
    """The largest of the runs."""
    shares = [
        100 * run.report["peak_bytes"].get("device_gaps", 0) / run.report["planned_bytes"]["device"]
        for run in runs
        if run.report and run.report["planned_bytes"]["device"]
    ]
    return [at_most(case, max(shares), "%", GAP_BAR)] if shares else []


def steps_beside_resident(row: Row) -> None:
    bench = Bench(row)
    every = row.place.pick(ROUNDS, REHEARSED)
    rounds = [each for each in every if row.place.wants(each[0])]
    if not rounds:
        row.lacks(f"a case that is asked for; there are {'; '.join({str(case): 0 for case, _ in every})}")
    for number, (case, sides) in enumerate(rounds):
        if bench.has_time(case):
            bench.take_round(case, sides)
        else:  # a later one may need less
            row.lacks(f"{case}: round {number + 1} of {len(rounds)}: no time left for its {case.needed_seconds:.0f} s")
