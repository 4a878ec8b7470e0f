"""Training runs of a row: models, configurations, and a process that is watched from outside."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from paired import ending
from step_bench import deepspeed_file

from gpu.machine import available_bytes, gpu_used_bytes
from gpu.row import Place, Row, last

TEXT_BYTES = 4 << 20
POLL_SECONDS = 0.02
GPU_POLL_SECONDS = 2.0  # nvidia-smi takes some 50 ms
GRACE_SECONDS = (45.0, 5.0)  # for the step in progress, once a run is told to end; in a rehearsal
VOCABULARY = 50304  # GPT-2's, padded


@dataclass(frozen=True)
class Model:
    """A GPT-2."""

    name: str
    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int = VOCABULARY

    def file(self, layers: int | None = None) -> dict:
        return {
            "model_type": "gpt2",
            "n_layer": layers or self.layers,
            "n_embd": self.width,
            "n_head": self.heads,
            "n_positions": self.length,
            "vocab_size": self.vocabulary,
            "layer_norm_epsilon": 1e-5,
        }

    @property
    def parameters(self) -> int:
        """The head is the embedding."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + (self.vocabulary + self.length + 2) * self.width

    @property
    def flop_per_token(self) -> float:
        """FLOP of the model per token: 6 for each multiplied parameter, plus 12 x blocks x width x
        length for attention (PaLM, Chowdhery et al. 2022, appendix B). Recomputes do not count."""
        multiplied = self.parameters - self.length * self.width
        return 6 * multiplied + 12 * self.layers * self.width * self.length


TINY = Model("tiny", 2, 64, 2, 32, 256)


def gpt(name: str, length: int) -> Model:
    """By the sizes of GPT-3 (Brown et al. 2020, table 2.1)."""
    shapes = {"125 M": (12, 768, 12), "350 M": (24, 1024, 16)}
    shapes |= {"1.3 B": (24, 2048, 16), "6.7 B": (32, 4096, 32)}
    return Model(name, *shapes[name], length)


@dataclass(frozen=True)
class Work:
    """A training run: which model, how many tokens a step, and where what is."""

    model: Model
    micro_batch: int
    accumulation: int
    steps: int
    optimizer: str = "cpu"
    weights: str = "cpu"
    clipping: float = 0
    sluice: dict = field(default_factory=dict, hash=False)
    deterministic: bool = False
    layers: int | None = None  # instead of the model's
    resident: bool = False
    checkpoint_every: int = 0  # steps; 0: at the end only, if at all
    ratio: float = 1.0  # of offload_optimizer

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.accumulation * self.model.length

    def configuration(self, place: Place, swap: Path) -> dict:
        def where(device: str) -> dict:
            return {"device": device} | ({"nvme_path": str(swap)} if device == "nvme" else {})

        own: dict = {}
        if place.gpu:
            own = {"device": "cuda"} | ({"deterministic": True} if self.deterministic else {})
        elif place.rehearsal:
            own = {"device_bytes": "1GiB", "host_bytes": "1GiB"}
        if self.checkpoint_every:
            checkpoints = swap.parent / "checkpoints"
            own |= {
                "checkpoint_dir": str(checkpoints),
                "checkpoint_every": self.checkpoint_every,
                "keep": 1,
            }
        return deepspeed_file(
            self.micro_batch,
            self.accumulation,
            self.clipping,
            where(self.optimizer) | ({"ratio": self.ratio} if self.ratio != 1 else {}),
            where(self.weights),
            own | self.sluice,
        )


@dataclass
class Sample:
    """At the end of a step."""

    step: int
    resident_bytes: int
    locked_bytes: int | None  # None: the kernel does not tell
    gpu_bytes: int | None


@dataclass
class Run:
    steps: list[dict]
    report: dict | None
    samples: list[Sample]
    peak_resident_bytes: int
    host_bytes: int  # that the machine had less of, at most
    ended: str  # "" when it took all its steps, else how it ended and what it said last
    first_step_seconds: float | None = None  # from the command to the end of its first step

    def seconds(self, warm_steps: int) -> list[float]:
        return [step["seconds"] for step in self.steps[warm_steps:]]

    @property
    def losses(self) -> list[float | None]:
        return [step["loss"] for step in self.steps]


def write_text(path: Path) -> None:
    """Bytes with something to learn: frequent ones, and pairs that follow each other."""
    draw = random.Random(1)
    words = [bytes(draw.choices(range(97, 123), k=draw.randint(2, 9))) for _ in range(500)]
    shares = [1 / rank for rank in range(1, len(words) + 1)]  # Zipf's law
    path.write_bytes(b" ".join(draw.choices(words, shares, k=TEXT_BYTES // 4))[:TEXT_BYTES])


def inputs(place: Place, work: Work) -> tuple[Path, Path, Path, Path]:
    """Configuration, model, data, and the swap folder, which is empty."""
    folder = place.drive / "training"
    folder.mkdir(exist_ok=True)
    swap = folder / "swap"
    shutil.rmtree(swap, ignore_errors=True)
    swap.mkdir()
    config, model, data = folder / "ds.json", folder / "model.json", folder / "data.txt"
    config.write_text(json.dumps(work.configuration(place, swap)))
    model.write_text(json.dumps(work.model.file(work.layers)))
    if not data.exists():
        write_text(data)
    return config, model, data, swap


def train(row: Row, work: Work, limit: float | None = None, **environment: str) -> Run:
    """`sluice train`; ends it with the step in progress when the time is up."""
    config, model, data, swap = inputs(row.place, work)
    report = config.parent / "report"
    line = [row.place.program("sluice"), "train", "--config", str(config)]
    line += ["--model", str(model), "--data", str(data), "--seed", "1"]
    line += ["--steps", str(work.steps), "--report", str(report)]
    if work.resident:
        line += ["--placement", "resident"]
    row.values.setdefault("configurations", []).append(json.loads(config.read_text()))
    try:
        return watched(row, line, report, work.steps, limit, environment)
    finally:
        shutil.rmtree(swap)
        shutil.rmtree(swap.parent / "checkpoints", ignore_errors=True)


def grace_of(row: Row) -> float:
    """No more than a quarter of a short row waits for the end of a step."""
    return min(row.place.pick(*GRACE_SECONDS), row.seconds_left() / 4)


def seconds_for_run(row: Row) -> float:
    """Until a run that begins now would be told to end."""
    return max(0.0, row.seconds_left() - grace_of(row))


def watched(
    row: Row, line: list[str], report: Path, steps: int, limit: float | None, more: dict[str, str]
) -> Run:
    """Any program that writes `steps.jsonl` into `report`, a line when a step has ended."""
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir()
    command = shlex.join(line)
    row.commands.append(command)
    print(f"$ {command}", flush=True)
    grace, left = grace_of(row), seconds_for_run(row)
    end = time.monotonic() + (left if limit is None else min(limit, left))
    environment = {**row.place.environment, **more}
    with (report / "output.log").open("wb") as log:
        watch = Watch(row.place, report / "steps.jsonl")
        process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            cut = watch.until(process, end, grace)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    lines = read_steps(report / "steps.jsonl")
    said = (report / "output.log").read_text(errors="replace")
    print(said[-3000:], flush=True)
    ended = ""
    if cut and len(lines) < steps:
        ended = f"ended after {len(lines)} of {steps} steps: no time left"
    elif not cut and process.returncode != 0:
        ended = f"{ending(process.returncode)}: {last(said)}"
    path = report / "report.json"
    whole = json.loads(path.read_text()) if path.exists() else None
    first = watch.first_step_seconds
    return Run(lines, whole, watch.samples, watch.peak, watch.host_bytes, ended, first)


def read_steps(path: Path) -> list[dict]:
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # what follows the last newline is not whole
    return [json.loads(line) for line in lines]


class Watch:
    """Looks at a process whenever a step has ended."""

    def __init__(self, place: Place, steps: Path) -> None:
        self.place = place
        self.steps = steps
        self.samples: list[Sample] = []
        self.peak = 0
        self.available = available_bytes()
        self.host_bytes = 0
        self.gpu_at = -GPU_POLL_SECONDS
        self.begin = time.monotonic()
        self.first_step_seconds: float | None = None

    def until(self, process: subprocess.Popen, end: float, grace: float) -> bool:
        """Whether it had to be told to end."""
        told = 0.0
        seen = 0
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            self.host_bytes = max(self.host_bytes, self.available - available_bytes())
            count = self.steps.read_bytes().count(b"\n") if self.steps.exists() else 0
            if count > seen:
                if seen == 0:
                    self.first_step_seconds = time.monotonic() - self.begin
                seen = count
                self.look(process.pid, count)
            now = time.monotonic()
            if not told and now > end:
                told = now
                process.send_signal(signal.SIGTERM)
            elif told and now > told + 0.9 * grace:
                process.kill()
        return told > 0

    def look(self, process_id: int, step: int) -> None:
        try:
            text = Path(f"/proc/{process_id}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return  # it has ended meanwhile
        fields = dict(re.findall(r"^(Vm\w+):\s*(\d+) kB", text, re.MULTILINE))
        if "VmRSS" not in fields:
            return
        kib = {name: int(value) for name, value in fields.items()}
        locked = 1024 * (kib["VmLck"] + kib["VmPin"]) if {"VmLck", "VmPin"} <= kib.keys() else None
        self.peak = max(self.peak, 1024 * kib.get("VmHWM", kib["VmRSS"]))
        gpu = None
        if self.place.gpu and time.monotonic() - self.gpu_at >= GPU_POLL_SECONDS:
            gpu, self.gpu_at = gpu_used_bytes(), time.monotonic()
        self.samples.append(Sample(step, 1024 * kib["VmRSS"], locked, gpu))


def rate_of(run: Run, tokens: int, warm_steps: int) -> float | None:
    """Tokens a second of the median step; None when no step was counted."""
    seconds = run.seconds(warm_steps)
    return tokens / statistics.median(seconds) if seconds else None
