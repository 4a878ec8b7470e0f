"""Rows 4 and 7: the largest model that trains, and that nothing grows over many steps."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, replace

from paired import GIB, MIB

from gpu.machine import available_bytes
from gpu.row import Failed, Row, at_least, at_most, figure
from gpu.speed import gap_lines
from gpu.training import TINY, Model, Run, Sample, Work, gpt, inputs, train

LARGEST_BAR = 12.5  # billions of parameters: 126 GiB of host memory and 80 GB of the device
LEFT_BYTES = 8 * GIB  # of host memory: for LibTorch, the program and the system
DEVICE_BYTES = 71 * GIB  # that a device of 80 GB has free; on a larger one, the rest is left
STEPS = 5
MICRO_BATCH = 4
REHEARSED_LAYERS = 40
WIDE = Model("blocks of 4,096", 2, 4096, 32, 1024)

ENDURANCE_STEPS = 200
SETTLED_AFTER = 10  # steps
SLACK_BYTES = {"resident": 16 * MIB, "pinned": 0, "device": 0}  # what an allocator keeps or not
LIMIT_BAR = 1.15  # of the slowest link's seconds


@dataclass(frozen=True)
class Largest:
    name: str
    optimizer: str
    sluice: dict
    bar: float | None = None


LARGEST = [
    Largest("in host and device memory", "cpu", {"durability": "none"}, LARGEST_BAR),
    Largest("states on NVMe, one slot", "nvme", {"durability": "none"}),
    Largest("states on NVMe, two slots", "nvme", {"durability": "process"}),
]


def largest(row: Row) -> None:
    """With clipping and a split master, as large as the plan says."""
    sizes = row.table("the largest model that trained, clipping on, split master")
    bytes_each = row.table("memory of it, bytes of a parameter; gaps of the device's memory")
    seconds = row.table(f"seconds of a step of it, {MICRO_BATCH} sequences")
    for number, one in enumerate(LARGEST):
        if row.place.rehearsal and number == 1:
            continue  # the last is like it
        if row.seconds_left() < least_seconds(row):
            row.lacks(f"{one.name}: no time left")
            continue
        parts = row.seconds_left() / (len(LARGEST) - number) if number else row.seconds_left()
        try:
            measure_largest(row, one, parts, sizes, bytes_each, seconds)
        except Failed as error:
            row.lacks(f"{one.name}: {error}")


def least_seconds(row: Row) -> float:
    """To begin a run with."""
    return row.place.pick(75.0, 1.0)


def measure_largest(
    row: Row, one: Largest, limit: float, sizes: list, bytes_each: list, seconds: list
) -> None:
    place = row.place
    host = place.host_bytes or available_bytes() - LEFT_BYTES
    budgets = place.pick({"host_bytes": host}, {"host_bytes": "24MiB", "device_bytes": "64MiB"})
    if not place.rehearsal and row.facts["device_memory_MiB"] * MIB > 80 * GIB:
        budgets["device_bytes"] = DEVICE_BYTES
    own = {"master": "split"} | budgets | one.sluice
    model = place.pick(WIDE, TINY)
    work = Work(model, MICRO_BATCH, 1, STEPS, one.optimizer, "cpu", clipping=1.0, sluice=own)
    plan = planned(row, work)
    if place.rehearsal:  # a drive holds a million such blocks
        plan["layers"] = min(plan["layers"], REHEARSED_LAYERS)
        plan["parameters"] = replace(model, layers=plan["layers"]).parameters
    work = replace(work, layers=plan["layers"])
    parameters = plan["parameters"]
    run = train(row, work, limit)
    row.values[one.name] = {"plan": plan, "steps": run.steps, "report": run.report}
    case = f"{one.name}: {plan['layers']} blocks"
    if run.ended:
        row.lacks(f"{case}: {run.ended}")
    losses = [loss for loss in run.losses if loss is not None]
    if len(losses) < 2 or losses[-1] >= losses[0]:
        row.lacks(f"{case}: the loss did not fall: {losses}")
        return
    note = f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {len(losses)} steps"
    billions = 1e-9 * parameters
    sizes.append(
        figure(case, billions, "G", note=note)
        if one.bar is None
        else at_least(case, billions, "G", one.bar, note=note)
    )
    if run.report:
        planned_each = run.report["peak_bytes"]["host"] / parameters
        bytes_each.append(figure(f"{case}: of the budget", planned_each, "B"))
        device_each = run.report["peak_bytes"]["device"] / parameters
        bytes_each.append(figure(f"{case}: of the device", device_each, "B"))
        bytes_each += gap_lines(f"{case}: gaps", [run])
    bytes_each.append(figure(f"{case}: of the machine", run.host_bytes / parameters, "B"))
    seconds.append(figure(case, statistics.median(run.seconds(1)), "s/step"))
    row.save()


def planned(row: Row, work: Work) -> dict:
    config, model, _, _ = inputs(row.place, work)
    line = [row.place.program("sluice"), "plan", "--config", str(config), "--model", str(model)]
    return json.loads(row.output_of([*line, "--max", "--json"]).splitlines()[-1])


def endurance(row: Row) -> None:
    """Many steps: what they hold, and what they take beside the slowest link."""
    tiny = Work(TINY, 2, 1, 40, clipping=1.0)
    large = Work(gpt("1.3 B", 1024), 8, 1, ENDURANCE_STEPS, clipping=1.0)
    small = replace(large, model=gpt("125 M", 1024))
    measured = [
        ("1.3 B, states in host memory", large),
        ("125 M, states on NVMe", replace(small, optimizer="nvme")),
    ]
    rehearsed = [
        ("tiny, states in host memory", tiny),
        ("tiny, states on NVMe", replace(tiny, optimizer="nvme")),
    ]
    growth = row.table(f"MiB more at the last steps than after step {SETTLED_AFTER}")
    limits = row.table("seconds of a step, and those that its slowest link is busy", "slowest link")
    for number, (name, work) in enumerate(row.place.pick(measured, rehearsed)):
        run = train(row, work, row.seconds_left() * (0.6 if number == 0 else 1.0))
        if run.ended:
            row.lacks(f"{name}: {run.ended}")
        row.values[name] = {"samples": [vars(one) for one in run.samples], "report": run.report}
        case = f"{name}, {len(run.steps)} steps"
        growth += growth_lines(row, case, run.samples)
        if run.report and run.steps:
            limits.append(limit_line(case, run))
        row.save()


def growth_lines(row: Row, case: str, samples: list[Sample]) -> list[dict]:
    settled = [one for one in samples if one.step > SETTLED_AFTER]
    if len(settled) < 4:
        row.lacks(f"{case}: too few steps to see a growth")
        return []
    held = {
        "resident": [one.resident_bytes for one in settled],
        "pinned": [one.locked_bytes for one in settled if one.locked_bytes is not None],
        "device": [one.gpu_bytes for one in settled if one.gpu_bytes is not None],
    }
    lines = []
    for what, values in held.items():
        if len(values) < 4:
            row.lacks(f"{case}: {what} bytes: {len(values)} samples")
            continue
        few = max(1, len(values) // 10)  # at either end
        grown = (max(values[-few:]) - max(values[:few])) / MIB
        lines.append(at_most(f"{case}: {what}", grown, "MiB", SLACK_BYTES[what] / MIB))
    return lines


def limit_line(case: str, run: Run) -> dict:
    report = run.report or {}
    step, bound = report["step_seconds"], max(report["limits_seconds"].values())
    ratio = step / bound
    line = at_most(f"{case}: bound by {report['bound_by']}", step, "s/step", bound * LIMIT_BAR)
    return line | {"peer": bound, "note": f"{ratio:.3f} of the link's seconds, bar {LIMIT_BAR}"}
