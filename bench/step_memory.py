#!/usr/bin/env python3
"""Memory of training steps: bytes a parameter in host memory, and that of ever deeper models on a drive."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from paired import MIB, Progress, folder_on_drive, write_result
from row_report import text_table, value_line
from rounds import Steps
from step_bench import REPOSITORY, DriveBench, deepspeed_file

STEPS = 4
MODEL = {
    "model_type": "gpt2",
    "n_embd": 896,
    "n_head": 14,
    "n_positions": 32,
    "vocab_size": 256,
}
SMALLEST = MODEL | {"n_layer": 1, "n_embd": 64, "n_head": 1}
# The plan's names for memory of computing; all other memory is homes and buffers.
ACTIVATIONS = ("activations", "workspace", "unit inputs", "inputs in flight")


@dataclass(frozen=True)
class InMemory:
    """Everything in host memory; at most `bar` bytes a parameter and the activations."""

    name: str
    bar: float
    clipping: float = 0
    sluice: dict = field(default_factory=dict, hash=False)


IN_MEMORY = [
    InMemory("fp32 master", 14.5, sluice={"master": "fp32"}),
    InMemory("split master", 12.5),
    InMemory("split master, clipping", 14.5, clipping=1.0),
]
LAYERS = 96  # of the model in host memory
DEPTHS = [3, 12, 48, 96]  # on a drive; the last has 32 times the parameters of the first


class Bench(DriveBench):
    def train(self, model: dict, configuration: dict) -> dict:
        """The run's report, with what the plan gives to activations."""
        (self.folder / "model.json").write_text(json.dumps(model))
        (self.folder / "ds.json").write_text(json.dumps(configuration))
        plan = self.call("plan")
        report = self.call("train", "--steps", str(STEPS), "--report", str(self.folder / "report"))
        report["activation_bytes"] = sum(
            row["device"] for row in plan["rows"] if row["component"] in ACTIVATIONS
        )
        return report

    def in_memory(self, model: dict, clipping: float, own: dict) -> dict:
        cpu = {"device": "cpu"}
        own = {"device_bytes": "256MiB", "host_bytes": "20GiB"} | own
        return self.train(model, deepspeed_file(1, 1, clipping, cpu, cpu, own))

    def on_drive(self, layers: int) -> dict:
        with tempfile.TemporaryDirectory(prefix="sluice-memory-", dir=self.drive) as swap:
            nvme = {"device": "nvme", "nvme_path": swap}
            own = {"device_bytes": "80MiB", "host_bytes": "112MiB"}
            return self.train(MODEL | {"n_layer": layers}, deepspeed_file(1, 1, 0, nvme, nvme, own))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drive", type=folder_on_drive, metavar="DIR", help="a directory on the drive to swap to")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value, and the facts")
    parser.add_argument("--binaries", type=Path, default=REPOSITORY / "build/bin", metavar="DIR")
    arguments = parser.parse_args()
    steps = Steps(Progress(), "memory")
    steps.expect("runs", 1 + len(IN_MEMORY) + len(DEPTHS))
    with tempfile.TemporaryDirectory(prefix="sluice-memory-") as folder:
        bench = Bench(Path(folder), arguments.drive, arguments.binaries)
        steps.step("an idle process")
        idle = bench.in_memory(SMALLEST, 0, {})["rss_peak_bytes"]
        lines = []
        for case in IN_MEMORY:
            steps.step(f"in host memory, {case.name}")
            report = bench.in_memory(MODEL | {"n_layer": LAYERS}, case.clipping, case.sluice)
            used = report["rss_peak_bytes"] - idle - report["activation_bytes"]
            name = f"{report['parameters'] / 1e6:.0f} M parameters, {case.name}"
            lines.append(value_line(name, used / report["parameters"], "B", case.bar, report=report))
        rows = [{"title": "bytes of a parameter with everything in host memory, activations apart", "peer": "", "lines": lines}]
        lines = []
        least = None
        for layers in DEPTHS:
            steps.step(f"on the drive, {layers} layers")
            report = bench.on_drive(layers)
            held = all(
                report["peak_bytes"][tier] <= report["budget_bytes"][tier] for tier in ("device", "host")
            )
            used = (report["rss_peak_bytes"] - idle) / MIB
            least = least or used
            line = value_line(f"{report['parameters'] / 1e6:.0f} M parameters", used, "MiB", report=report)
            lines.append(line | {"bar": 1.05 * least, "at_most": True, "met": held and used <= 1.05 * least})
        title = "memory of the process in a step with everything on a drive, less an idle process"
        rows.append({"title": title, "peer": "", "lines": lines})
    steps.progress.clear()
    for row in rows:
        print(text_table(row) + "\n")
    if arguments.out:
        names = {folder: "DIR", str(arguments.drive): "DRIVE"}
        facts = {"idle_bytes": idle, "commands": bench.commands, "rows": rows}
        write_result(arguments.out, REPOSITORY, facts, names)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
