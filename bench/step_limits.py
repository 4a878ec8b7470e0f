#!/usr/bin/env python3
"""Training steps beside what their slowest link allows and what was predicted, the machine probed next to each run."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from paired import Progress, folder_on_drive, quotients, summarize, write_result
from row_report import ratio_line, text_table
from rounds import Steps
from step_bench import MODEL, REPOSITORY, DriveBench, deepspeed_file

WARM_STEPS = 2  # of each run; not counted


@dataclass(frozen=True)
class Case:
    """A configuration; `beside_host`: run it with the states in host memory too."""

    name: str
    positions: int = MODEL["n_positions"]
    states: str = "nvme"
    weights: str = "cpu"
    micro_batch: int = 1
    accumulation: int = 1
    clipping: float = 0
    steps: int = 12
    beside_host: bool = False
    on_drive: bool = False  # the drive takes much longer than computing
    drive_bar: float | None = None  # of the drive's rate in a step, beside that of the probe
    sluice: dict = field(default_factory=dict, hash=False)

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.accumulation * self.positions

    def __str__(self) -> str:
        return self.name


# Names of the cases whose tokens a probe finds.
BALANCED = (
    "states on NVMe, {:,} tokens, as long as the drive",
    "states on NVMe, {:,} tokens, four times the drive",
)
ON_DRIVE = Case("states on NVMe, 512 tokens")
FEW = 64  # tokens


def few(what: str, drive_bar: float | None = None, **sluice) -> Case:
    name = f"{FEW} tokens, {what}"
    return Case(name, FEW, on_drive=True, drive_bar=drive_bar, sluice=sluice)


CASES = [
    Case("all in host memory", states="cpu"),
    Case("host memory, clipped", states="cpu", clipping=1.0),
    Case("host memory, recompute", states="cpu", sluice={"activations": "recompute"}),
    Case("host memory, fp32 master", states="cpu", sluice={"master": "fp32"}),
    Case("host memory, bf16 moments", states="cpu", sluice={"moments": "bf16"}),
    Case("host memory, no overlap", states="cpu", sluice={"overlap": False}),
    ON_DRIVE,
    Case("states on NVMe, clipped", clipping=1.0),
    Case("states on NVMe, half cached", sluice={"cache_bytes": "50%"}),
    Case("states and weights on NVMe", weights="nvme"),
    Case("states on NVMe, bf16 moments", sluice={"moments": "bf16"}),
    Case("states on NVMe, no overlap", sluice={"overlap": False}),
    few("states on NVMe", drive_bar=0.90),
    *(few(f"{share} % cached", cache_bytes=f"{share}%") for share in (25, 50, 75)),
    few("no overlap", overlap=False),
]


def configuration(case: Case, states: str, drive: Path) -> dict:
    def place(device: str) -> dict:
        return {"device": device} | ({"nvme_path": str(drive)} if device == "nvme" else {})

    own = {"device_bytes": "8GiB", "host_bytes": "5GiB", "activations": "keep"} | case.sluice
    weights = case.weights if states != "cpu" else "cpu"
    return deepspeed_file(
        case.micro_batch, case.accumulation, case.clipping, place(states), place(weights), own
    )


class Bench(DriveBench):
    def balanced(self) -> list[Case]:
        """Cases in which a step computes about as long as the drive takes, and four times as long."""
        tokens = statistics.median(self.tokens_of_drive() for _ in range(5))
        positions = max(64, 64 * round(tokens / 64))
        return [
            Case(BALANCED[0].format(positions), positions, beside_host=True),
            Case(
                BALANCED[1].format(4 * positions),
                positions,
                accumulation=4,
                steps=8,
                beside_host=True,
            ),
        ]

    def tokens_of_drive(self) -> float:
        """How many tokens a step would have that computes as long as the drive takes."""
        with tempfile.TemporaryDirectory(prefix="sluice-limits-", dir=self.drive) as swap:
            self.configure(ON_DRIVE, ON_DRIVE.states, Path(swap))
            limits = self.call("plan", "--probe")["predicted"]["limits_seconds"]
        return ON_DRIVE.tokens * (limits["drive"] - limits["update"]) / limits["compute"]

    def configure(self, case: Case, states: str, drive: Path) -> None:
        (self.folder / "ds.json").write_text(json.dumps(configuration(case, states, drive)))
        (self.folder / "model.json").write_text(json.dumps(MODEL | {"n_positions": case.positions}))

    def call(self, name: str, *more: str) -> dict:
        return super().call(name, "--rates", str(self.folder / "rates.json"), *more)

    def measure(self, case: Case, states: str) -> dict:
        """Median seconds of a step, what was predicted, and the slowest link by the same probe."""
        with tempfile.TemporaryDirectory(prefix="sluice-limits-", dir=self.drive) as swap:
            self.configure(case, states, Path(swap))
            self.call("plan", "--probe")
            report_folder = self.folder / "report"
            report = self.call(
                "train", "--steps", str(case.steps), "--report", str(report_folder)
            )
        lines = (report_folder / "steps.jsonl").read_text().splitlines()
        seconds = [json.loads(line)["seconds"] for line in lines][-case.steps + WARM_STEPS :]
        limits = report["predicted"]["limits_seconds"]
        return {
            "seconds": statistics.median(seconds),
            "predicted": report["predicted"]["step_seconds"],
            "limits": limits,
            # Where the device is the host, computing and the update share the cores.
            "limit": max(limits["compute"] + limits["update"], limits["drive"]),
            "bytes_as_planned": report["bytes_per_step"]["planned"]
            == report["bytes_per_step"]["measured"],
            "peak": {
                tier: report["peak_bytes"][tier] / planned
                for tier, planned in report["planned_bytes"].items()
                if planned > 0
            },
        }


def lines_of(case: Case, runs: dict[str, list[dict]]) -> dict[str, dict]:
    """By table."""
    ours = runs["ours"]
    seconds = [run["seconds"] for run in ours]
    median_ms = 1e3 * statistics.median(seconds)

    def line(peer: list[float], ratio: list[float], bar: float | None, at_most: bool = False) -> dict:
        more = {"at_most": True} if at_most else {}
        return ratio_line(
            str(case), median_ms, 1e3 * statistics.median(peer), "ms", summarize(ratio), bar, runs=ours, **more
        )

    predicted = [run["predicted"] for run in ours]
    tables = {"predicted": line(predicted, quotients(seconds, predicted), None)}
    tables["predicted"]["met"] = abs(tables["predicted"]["ratio"]["median"] - 1) <= 0.15
    if not all(run["bytes_as_planned"] for run in ours):
        tables["predicted"]["note"] = "bytes of the last step are not those of the plan"
    if case.on_drive:
        drive = [run["limits"]["drive"] for run in ours]
        tables["drive"] = line(drive, quotients(drive, seconds), case.drive_bar)
    if case.beside_host:
        limits = [run["limit"] for run in ours]
        tables["limit"] = line(limits, quotients(seconds, limits), 1.15, at_most=True)
        host = [run["seconds"] for run in runs["host"]]
        tables["host"] = line(host, quotients(host, seconds), None)
    return tables


def bytes_text(runs: list[dict]) -> str:
    """Whether the bytes of these runs are those of their plans."""
    as_planned = sum(run["bytes_as_planned"] for run in runs)
    peaks = [peak for run in runs for peak in run["peak"].values()]
    return (
        f"bytes per link and step as planned in {as_planned} of {len(runs)} runs;"
        f" peaks of the tiers {min(peaks):.3f} to {max(peaks):.3f} of the plan"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drive", type=folder_on_drive, metavar="DIR", help="a directory on the drive to swap to")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value, and the facts")
    parser.add_argument("--match", default="", help="only cases in whose name this regular expression is found")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each case (5)")
    parser.add_argument("--binaries", type=Path, default=REPOSITORY / "build/bin", metavar="DIR")
    arguments = parser.parse_args()
    try:
        match = re.compile(arguments.match).search
    except re.error as error:
        parser.error(f"--match {arguments.match!r}: {error}")
    cases = [case for case in CASES if match(case.name)]
    balances = any(map(match, BALANCED))
    if not cases and not balances:
        parser.error(f"no case has {arguments.match!r} in its name")
    progress = Progress()
    steps = Steps(progress, "step")
    with tempfile.TemporaryDirectory(prefix="sluice-step-") as folder:
        bench = Bench(Path(folder), arguments.drive, arguments.binaries)
        if balances:
            progress.show("step: how many tokens take as long as the drive")
            cases = [case for case in bench.balanced() if match(case.name)] + cases
        steps.expect("runs", arguments.rounds * sum(1 + case.beside_host for case in cases))
        runs: dict[Case, dict[str, list[dict]]] = {case: {"ours": [], "host": []} for case in cases}
        for number in range(arguments.rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                steps.step(f"round {number + 1} of {arguments.rounds}, {case}")
                runs[case]["ours"].append(bench.measure(case, case.states))
                if case.beside_host:
                    steps.step(f"round {number + 1} of {arguments.rounds}, {case}, host memory")
                    runs[case]["host"].append(bench.measure(case, "cpu"))
    progress.clear()
    titles = {
        "limit": ("a step beside its slowest link, probed next to each run", "limit"),
        "host": ("the same beside a step with the states in host memory (tokens/s)", "host memory"),
        "drive": ("the drive's rate in a step beside that of a swap probed next to each run", "drive"),
        "predicted": ("a step beside the prediction", "predicted"),
    }
    rows = []
    for key, (title, peer) in titles.items():
        lines = [tables[key] for case in cases if key in (tables := lines_of(case, runs[case]))]
        if lines:
            rows.append({"title": f"{title}, {os.cpu_count()} cores", "peer": peer, "lines": lines})
            print(text_table(rows[-1]) + "\n")
    print(bytes_text([run for case in cases for run in runs[case]["ours"]]))
    if arguments.out:
        names = {folder: "DIR", str(arguments.drive): "DRIVE"}
        write_result(arguments.out, REPOSITORY, {"commands": bench.commands, "rows": rows}, names)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
