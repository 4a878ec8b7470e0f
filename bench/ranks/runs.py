"""Runs of `sluice train` over ranks, and the seconds of their steps.

Each rank has one core and one thread for each kind of work, so that two ranks on two cores are two small machines.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
ONE_THREAD = {"compute": 1, "optimizer": 1, "io": 1}
# A shell before each rank: the words behind it run on the core of the rank's number.
ON_OWN_CORE = 'cores="$1"; shift; core=$(echo $cores | cut -d " " -f $((OMPI_COMM_WORLD_RANK + 1))); exec taskset -c $core "$@"'


@dataclass(frozen=True)
class Case:
    """A model, and the step of each rank. In fp32: processors without bf16 compute in it a hundred times slower."""

    layers: int = 12
    width: int = 256
    positions: int = 128
    micro_batch: int = 4
    accumulation: int = 1
    stage: int = 3
    states: str = "cpu"  # or nvme
    clipping: float = 1.0
    steps: int = 12
    warm_steps: int = 2  # of these, the first ones, which are not counted
    one_core: bool = True  # of each rank; else the ranks share all cores

    def model(self) -> dict:
        heads = self.width // 64
        shape = {"n_layer": self.layers, "n_embd": self.width, "n_head": heads}
        return {"model_type": "gpt2", "n_positions": self.positions, "vocab_size": 256} | shape

    @property
    def parameters(self) -> int:
        return 12 * self.layers * self.width**2

    @property
    def tokens(self) -> int:
        """Tokens of one rank in a step."""
        return self.micro_batch * self.accumulation * self.positions

    def __str__(self) -> str:
        place = "on NVMe" if self.states == "nvme" else "in host memory"
        return f"{self.parameters / 1e6:.1f} M parameters, stage {self.stage}, states {place}, {self.tokens:,} tokens of a rank"


class Failed(Exception):
    """A program that did not do what was asked, with what it said last."""


@dataclass(frozen=True)
class Steps:
    """The steps of one run, the first ones left out."""

    seconds: list[float]
    report: dict

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def number(self, name: str, of: str = "most") -> float:
        """A number of the report's ranks."""
        return self.report["ranks"]["numbers"][name][of]


class Bench:
    """Files of runs below `folder`, and the programs of `binaries`."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        self.binaries = binaries
        self.cores = sorted(os.sched_getaffinity(0))
        self.commands: dict[str, str] = {}
        (folder / "data.txt").write_bytes(random.Random(1).randbytes(1 << 20))

    def arguments(self, case: Case, name: str) -> list[str]:
        """Arguments of `sluice train`, after writing its files. Removes an earlier run of this name."""
        place: dict = {"device": case.states}
        swap = self.folder / f"{name}.nvme"
        shutil.rmtree(swap, ignore_errors=True)
        shutil.rmtree(self.folder / f"{name}.report", ignore_errors=True)
        if case.states == "nvme":
            swap.mkdir()
            place["nvme_path"] = str(swap)
        zero: dict = {"stage": case.stage, "offload_optimizer": place}
        if case.stage == 3:
            zero["offload_param"] = {"device": "cpu"}
        own: dict = {"device_bytes": "1GiB", "host_bytes": "1GiB"}
        if case.one_core:
            own["threads"] = ONE_THREAD
        config = {
            "train_micro_batch_size_per_gpu": case.micro_batch,
            "gradient_accumulation_steps": case.accumulation,
            "gradient_clipping": case.clipping,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
            "bf16": {"enabled": False},
            "zero_optimization": zero,
            "sluice": own,
        }
        (self.folder / f"{name}.json").write_text(json.dumps(config))
        (self.folder / f"{name}.model.json").write_text(json.dumps(case.model()))
        line = [str(self.binaries / "sluice"), "train", "--config", str(self.folder / f"{name}.json")]
        line += ["--model", str(self.folder / f"{name}.model.json"), "--data", str(self.folder / "data.txt")]
        return line + ["--steps", str(case.steps), "--report", str(self.folder / f"{name}.report")]

    def ranks_line(self, case: Case, name: str, ranks: int) -> list[str]:
        """The ranks of this machine: MPI through shared memory."""
        line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        if case.one_core:
            line += ["sh", "-c", ON_OWN_CORE, "rank", " ".join(map(str, self.cores))]
        return line + self.arguments(case, name)

    def ranks(self, case: Case, ranks: int, name: str = "ranks") -> Steps:
        self.run(self.ranks_line(case, name, ranks))
        return self.steps(case, name)

    def alone(self, case: Case, processes: int) -> list[Steps]:
        """So many runs of one rank at once, each on a core of its own, that know nothing of each other."""
        names = [f"alone{number}" for number in range(processes)]
        children = []
        for name, core in zip(names, self.cores):
            line = ["taskset", "-c", str(core), *self.arguments(case, name)]
            self.commands["alone"] = self.shown(line)
            pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
            children.append((line, subprocess.Popen(line, **pipes)))
        errors = [(line, child.communicate()[1], child.returncode) for line, child in children]
        for line, error, code in errors:
            if code != 0:
                raise Failed(f"{shlex.join(line)} failed: {error.strip()}")
        return [self.steps(case, name) for name in names]

    def run(self, line: list[str]) -> str:
        self.commands[line[0]] = self.shown(line)
        done = subprocess.run(line, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"{shlex.join(line)} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout

    def steps(self, case: Case, name: str) -> Steps:
        report = self.folder / f"{name}.report"
        lines = (report / "steps.jsonl").read_text().splitlines()
        seconds = [json.loads(step)["seconds"] for step in lines]
        return Steps(seconds[case.warm_steps:], json.loads((report / "report.json").read_text()))

    def shown(self, line: list[str]) -> str:
        """A command as a result shows it."""
        return shlex.join(line).replace(str(self.folder), "DIR").replace(f"{REPOSITORY}/", "")


def on_drive(case: Case) -> Case:
    return replace(case, states="nvme")


def stop(problem: str) -> None:
    sys.exit(f"{Path(sys.argv[0]).name}: {problem}")
