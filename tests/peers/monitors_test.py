"""The files of the monitors, read with TensorBoard's own reader and Python's csv, after a run was killed and resumed."""

from __future__ import annotations

import csv
import json
import os
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing import event_accumulator

PROGRAM = os.environ.get("SLUICE", str(Path(__file__).resolve().parents[2] / "build/bin/sluice"))
MODEL = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32, "vocab_size": 256}
BATCH = 8
STEPS = 60


def fp32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


class Run:
    def __init__(self, folder: Path, **keys: Any) -> None:
        self.folder = folder
        (folder / "swap").mkdir()
        (folder / "data.txt").write_text("the drive waits for the shard of the step. " * 2000)
        (folder / "model.json").write_text(json.dumps(MODEL))
        config = {
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": 4,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": STEPS, "warmup_num_steps": 5}},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(folder / "swap")}},
            "tensorboard": {"enabled": True, "output_path": str(folder), "job_name": "events"},
            "csv_monitor": {"enabled": True, "output_path": str(folder), "job_name": "csv"},
            "sluice": {"device": "host", "device_bytes": "64MiB", "host_bytes": "64MiB"},
        }
        (folder / "ds.json").write_text(json.dumps({**config, **keys}))

    def command(self, *more: str) -> list[str]:
        files = {"--config": "ds.json", "--model": "model.json", "--data": "data.txt", "--report": "report"}
        named = [word for flag, name in files.items() for word in (flag, str(self.folder / name))]
        return [PROGRAM, "train", *named, "--steps", str(STEPS), "--eval-fraction", "0.2", "--eval-every", "7", *more]

    def finish(self, *more: str) -> str:
        run = subprocess.run(self.command("--resume", *more), capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return run.stdout

    def kill_after(self, step: int) -> None:
        """Begins or resumes the run, and kills it when so many steps are in steps.jsonl."""
        lines = self.folder / "report/steps.jsonl"
        with subprocess.Popen(self.command("--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
            end = time.monotonic() + 120
            while not lines.exists() or lines.read_bytes().count(b"\n") < step:
                assert run.poll() is None, "the run ended before it was killed"
                assert time.monotonic() < end
                time.sleep(0.002)
            run.kill()

    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "report/steps.jsonl").read_text().splitlines()]

    def scalars(self) -> dict[str, list[tuple[int, float]]]:
        reader = event_accumulator.EventAccumulator(str(self.folder / "events"), size_guidance={event_accumulator.SCALARS: 0})
        reader.Reload()
        return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def expected(steps: list[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(BATCH * step["step"], step[key]) for step in steps if key in step]


@pytest.mark.parametrize("keys", [{}, {"wall_clock_breakdown": True}, {"fp16": {"enabled": True}}], ids=["plain", "times", "fp16"])
def test_after_kills_every_step_is_there_once(tmp_path: Path, keys: dict[str, Any]) -> None:
    run = Run(tmp_path, **keys)
    for step in (9, 22, 41):
        run.kill_after(step)
    run.finish()
    steps = run.steps()
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert len(list((tmp_path / "events").iterdir())) == 4  # one file for each start
    scalars = run.scalars()
    rows = {
        "train_loss": expected(steps, "loss"),
        "lr": expected(steps, "lr"),
        "grad_norm": expected(steps, "grad_norm"),
        "eval_loss": expected(steps, "eval_loss"),
    }
    if "fp16" in keys:
        rows["loss_scale"] = expected(steps, "loss_scale")
    assert len(rows["eval_loss"]) >= STEPS // 7
    for name, values in rows.items():
        assert scalars.pop(f"Train/Samples/{name}") == [(samples, fp32(value)) for samples, value in values], name
        with (tmp_path / f"csv/Train_Samples_{name}.csv").open(newline="") as file:
            table = list(csv.reader(file))
        assert table[0] == ["step", name]
        assert [(int(samples), float(value)) for samples, value in table[1:]] == values, name
    if "wall_clock_breakdown" in keys:
        parts = {name: dict(scalars.pop(f"Train/Samples/elapsed_time_ms_{name}")) for name in ("forward", "backward", "step")}
        for step in steps:
            total = sum(part[BATCH * step["step"]] for part in parts.values())
            assert total == pytest.approx(1e3 * step["seconds"], rel=1e-5)
        assert sorted(scalars) == ["Train/Samples/elapsed_time_ms_backward_allreduce", "Train/Samples/elapsed_time_ms_backward_inner"]
    else:
        assert not scalars


def test_the_lines_of_deepspeeds_log_can_be_parsed(tmp_path: Path) -> None:
    run = Run(tmp_path, steps_per_print=10, wall_clock_breakdown=True, memory_breakdown=True)
    out = run.finish()
    speeds = re.findall(r"global_step=(\d+), RunningAvgSamplesPerSec=([\d.]+), CurrSamplesPerSec=([\d.]+)", out)
    assert [int(step) for step, _, _ in speeds] == list(range(10, STEPS + 1, 10))
    steps = run.steps()
    for step, average, current in speeds:
        seconds = [record["seconds"] for record in steps[2 : int(step)]]
        assert float(average) == pytest.approx(BATCH * len(seconds) / sum(seconds), rel=1e-5)
        assert float(current) == pytest.approx(BATCH / seconds[-1], rel=1e-5)
    times = re.findall(r"time \(ms\) \| fwd: ([\d.]+) \| bwd: ([\d.]+) \| bwd_inner: [\d.]+ \| bwd_allreduce: 0.00 \| step: ([\d.]+)", out)
    assert len(times) == STEPS
    for record, parts in zip(steps, times, strict=True):
        assert sum(map(float, parts)) == pytest.approx(1e3 * record["seconds"], abs=0.02)
    assert len(re.findall(r"MA [\d.]+ GB +Max_MA [\d.]+ GB +CA [\d.]+ GB\nCPU Virtual Memory:  used = [\d.]+ GB, percent = [\d.]+%", out)) == STEPS


def test_an_evaluation_leaves_the_files_of_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish()
    files = sorted(path.name for folder in ("events", "csv") for path in (tmp_path / folder).iterdir())
    run.finish()  # nothing is left to train
    assert sorted(path.name for folder in ("events", "csv") for path in (tmp_path / folder).iterdir()) == files


def test_without_resume_a_second_run_has_the_dashboard_for_itself(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.finish()
    subprocess.run([PROGRAM, "nvme", "clean", str(tmp_path / "swap"), "--committed"], check=True, capture_output=True)
    run.finish("--seed", "7")
    assert run.scalars()["Train/Samples/train_loss"] == [(s, fp32(v)) for s, v in expected(run.steps(), "loss")]
