#!/usr/bin/env python3
"""A training step offloaded, against the same model resident in a plain LibTorch loop, in alternating runs."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from paired import Progress, write_result
from rounds import Steps, alternate
from row_report import slices_line, text_table

REPOSITORY = Path(__file__).resolve().parent.parent
MODEL = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 896,
    "n_head": 14,
    "n_positions": 512,
    "vocab_size": 256,
}


@dataclass(frozen=True)
class Case:
    """A step of so many tokens, with everything in host memory."""

    micro_batch: int
    accumulation: int
    steps: int  # of each run
    warm_steps: int  # of these, the first ones, which are not counted
    activations: str
    bar: float

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.accumulation * MODEL["n_positions"]

    def __str__(self) -> str:
        return f"{self.tokens:,} tokens, activations {self.activations}"


CASES = {
    "small": Case(1, 1, 12, 2, "keep", 0.92),
    "small-recompute": Case(1, 1, 12, 2, "recompute", 0.72),
    "large": Case(4, 8, 2, 1, "keep", 0.98),
    "large-recompute": Case(4, 8, 2, 1, "recompute", 0.72),
}


def deepspeed_file(
    micro_batch: int, accumulation: int, clipping: float, optimizer: dict, param: dict, sluice: dict
) -> dict:
    """A configuration; `optimizer` and `param` are where states and weights go."""
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clipping,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": optimizer, "offload_param": param},
        "sluice": sluice,
    }


def configuration(case: Case) -> dict:
    host = {"device": "cpu"}
    own = {"device_bytes": "12GiB", "host_bytes": "4GiB", "activations": case.activations}
    return deepspeed_file(case.micro_batch, case.accumulation, 0, host, host, own)


def write_inputs(folder: Path) -> None:
    """model.json and data.txt"""
    (folder / "model.json").write_text(json.dumps(MODEL))
    (folder / "data.txt").write_bytes(random.Random(1).randbytes(4 << 20))


def output_of(line: list[str]) -> str:
    """Output of a command; ends the script when the command fails."""
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{Path(sys.argv[0]).name}: {shlex.join(line)} failed: {done.stderr.strip()}")
    return done.stdout


class DriveBench:
    """Calls of the program on ds.json, model.json and data.txt of a folder; what it swaps goes to `drive`."""

    def __init__(self, folder: Path, drive: Path, binaries: Path) -> None:
        self.folder, self.drive, self.binaries = folder, drive, binaries
        self.commands: dict[str, str] = {}
        write_inputs(folder)

    def call(self, name: str, *more: str) -> dict:
        line = [str(self.binaries / "sluice"), name, "--json", "--config", str(self.folder / "ds.json")]
        line += ["--model", str(self.folder / "model.json"), "--data", str(self.folder / "data.txt"), *more]
        self.commands[name] = shlex.join(line)
        return json.loads(output_of(line).splitlines()[-1])


class Bench:
    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.binaries = binaries
        self.commands: dict[str, list[str]] = {}
        write_inputs(folder)

    def offloaded(self, case: Case) -> float:
        """Tokens a second of the median step."""
        config = self.folder / "ds.json"
        config.write_text(json.dumps(configuration(case)))
        line = [str(self.binaries / "sluice"), "train", "--config", str(config)]
        line += ["--model", str(self.folder / "model.json"), "--data", str(self.folder / "data.txt")]
        line += ["--steps", str(case.steps), "--report", str(self.folder / "report")]
        self.run("sluice", line)
        lines = (self.folder / "report" / "steps.jsonl").read_text().splitlines()
        return self.rate(case, [json.loads(step)["seconds"] for step in lines])

    def plain(self, case: Case) -> float:
        line = [str(self.binaries / "plain_loop"), str(self.folder / "model.json")]
        line += [str(case.micro_batch), str(case.accumulation), str(case.steps)]
        return self.rate(case, json.loads(self.run("plain_loop", line))["seconds"])

    def run(self, name: str, line: list[str]) -> str:
        self.commands[name] = line
        return output_of(line)

    @staticmethod
    def rate(case: Case, seconds: list[float]) -> float:
        return case.tokens / statistics.median(seconds[case.warm_steps:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value, and the facts")
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {', '.join(CASES)} (all)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--binaries", type=Path, default=REPOSITORY / "build/bin", metavar="DIR")
    arguments = parser.parse_args()
    unknown = set(arguments.cases.split(",")) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    chosen = [CASES[name] for name in arguments.cases.split(",")]
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="sluice-step-") as folder:
        bench = Bench(Path(folder), arguments.binaries)
        sides = {
            case: {
                "ours": lambda case=case: bench.offloaded(case),
                "peer": lambda case=case: bench.plain(case),
                "again": lambda case=case: bench.plain(case),
            }
            for case in chosen
        }
        rates = alternate(sides, arguments.rounds, Steps(progress, "step"))
    progress.clear()
    lines = [slices_line(str(case), rates[case], case.bar, "tokens/s") for case in chosen]
    title = "tokens/s, 115.9 M parameters, bf16, weights and optimizer in host memory"
    row = {"title": f"{title}, {os.cpu_count()} cores", "peer": "resident", "lines": lines}
    print(text_table(row))
    if arguments.out:
        commands = {name: shlex.join(line) for name, line in bench.commands.items()}
        write_result(arguments.out, REPOSITORY, {"commands": commands, "rows": [row]}, {folder: "DIR"})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
