"""Rows 1 and 2: what copies, the optimizer and the drive reach of their own bounds."""

from __future__ import annotations

import json
import os
import shutil

from adam_rows import beside_bound, name_of, run as run_adam
from paired import GIB, MIB

from gpu.row import Failed, Row, many_line

COPY_BAR = 0.97
ADAM_BAR = 0.90
SWAP_BAR = 0.95
ADAM_STATES = {
    "fp32": "fp32 states",
    "split": "split master",
    "split_bf16": "split master, bf16 moments",
}


def copies(row: Row) -> None:
    """Host and device through Sluice's device, beside the driver's own largest copy."""
    place = row.place
    size, rounds = place.pick(("1024", "25"), ("32", "3"))
    line = [place.program("copy_bench"), place.device, size, rounds]
    result = json.loads(row.output_of(line))
    peer = "driver" if place.gpu else "memcpy"
    lines = row.table(f"GB/s, {size} MiB between {result['device']} and pinned memory", peer)
    for case, sides in result["cases"].items():
        lines.append(many_line(case, sides, "GB/s", COPY_BAR))
    row.save()


def host_work(row: Row) -> None:
    """The optimizer on all cores beside loads and stores alone; a swap beside a bare loop."""
    for part in (optimizer, drive, drive_to_gpu):
        try:
            part(row)
        except Failed as error:
            row.lacks(str(error))


def optimizer(row: Row) -> None:
    cores = len(os.sched_getaffinity(0))
    # 3.8 GB: a host's last cache of 300 MiB held part of 0.9 GB, which went a sixth faster.
    count, repetitions, seconds = row.place.pick((256 << 20, 7, "0.5"), (4 << 20, 1, "0.01"))
    names = {state: name_of(state, cores, count=count) for state in ADAM_STATES}
    program = row.place.binaries / "adam_bench"
    command, values = run_adam(
        program, list(names.values()), repetitions, row.output_of, min_time=seconds
    )
    row.values["adam"] = {"command": command, "values": values}
    lines = row.table(f"GB/s of the optimizer, {cores} cores, {count:,} parameters", "bound")
    for state, name in names.items():
        lines.append(beside_bound(ADAM_STATES[state], values[name], ADAM_BAR))
    row.save()


def drive(row: Row) -> None:
    """By the first backend that works here, as training chooses."""
    place = row.place
    size, rounds, seconds = place.pick((8 * GIB, 40, 0.5), (64 * MIB, 2, 0.1))
    free = shutil.disk_usage(place.drive).free
    if free < size + GIB:
        row.lacks(f"swap: {free / GIB:.1f} GiB free on the drive, {(size + GIB) / GIB:.0f} needed")
        return
    why = []
    for backend in ("io_uring", "libaio"):
        line = [place.program("swap_bench"), str(place.drive), str(size // MIB), str(rounds)]
        try:
            result = json.loads(row.output_of([*line, str(seconds), backend]))
        except Failed as error:
            why.append(str(error))
            continue
        lines = row.table("GB/s of an optimizer's swap, read and written", "bare loop")
        lines.append(many_line(f"swap, {backend}", result["slices"], "GB/s", SWAP_BAR))
        break
    (place.drive / "bench.sluice").unlink(missing_ok=True)
    for text in why:
        row.lacks(f"swap: {text}")
    row.save()


def drive_to_gpu(row: Row) -> None:
    """The ways between the drive and the GPU's memory, beside the drive and copies alone: values, without a bar."""
    if not row.place.gpu:
        return
    where = row.place.drive / "to-gpu"
    where.mkdir()
    try:
        bench = [row.place.program("sluice"), "nvme", "bench", str(where), "--memory", "cuda"]
        said = row.output_of([*bench, "--op", "mixed", "--seconds", "20", "--json"])
        row.values["drive_to_gpu"] = json.loads(said.splitlines()[-1])
    finally:
        shutil.rmtree(where)
    row.save()
