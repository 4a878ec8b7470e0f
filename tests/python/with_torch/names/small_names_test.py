"""Small names of DeepSpeed that stop a script when they are missing: timers, monitors, batch sizes, modules by their path."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train

import sluice
from sluice import ops, utils
from sluice.accelerator import get_accelerator
from sluice.ops import adagrad, adam, lion
from sluice.runtime.utils import see_memory_usage

MEBIBYTE = 1 << 20


def test_the_throughput_timer_counts_steps_and_their_samples() -> None:
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=2))
    timer = engine.tput_timer
    train(engine, range(2))
    assert (timer.micro_step_count, timer.global_step_count, timer.avg_samples_per_sec()) == (4, 2, -math.inf)
    timer.update_epoch_count()  # DeepSpeed-Chat ends its epochs so
    train(engine, range(3))
    assert (timer.epoch_count, timer.micro_step_count, timer.global_step_count) == (1, 6, 5)
    assert timer.avg_samples_per_sec() == pytest.approx(3 * engine.train_batch_size() / timer.total_elapsed_time)
    with torch.no_grad():
        engine(batch(0)[0])
    assert timer.micro_step_count == 6
    engine.destroy()


def test_a_script_writes_its_values_beside_the_engines(tmp_path: Path) -> None:
    keys = config(csv_monitor={"enabled": True, "output_path": str(tmp_path), "job_name": "run"})
    engine = engine_of(make(blocks=1), keys)
    assert engine.monitor.enabled
    engine.monitor.write_events([("Eval/perplexity", 3.5, 1), ("own value", torch.tensor(2.0), 1)])
    train(engine, range(1))
    engine.monitor.write_events([("Eval/perplexity", 3.25, 2)])
    engine.destroy()
    engine_of(make(blocks=1), keys).monitor.write_events([("Eval/perplexity", 3.0, 3)])  # of a process that goes on
    with open(tmp_path / "run" / "Eval_perplexity.csv", newline="") as file:
        assert list(csv.reader(file)) == [["step", "perplexity"], ["1", "3.5"], ["2", "3.25"], ["3", "3.0"]]
    assert (tmp_path / "run" / "own_value.csv").read_bytes() == b"step,own value\r\n1,2.0\r\n"
    assert (tmp_path / "run" / "Train_Samples_train_loss.csv").exists()


def test_without_a_monitor_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = engine_of(make(blocks=1), config())
    assert not engine.monitor.enabled
    engine.monitor.write_events([("Eval/perplexity", 3.5, 1)])
    engine.destroy()
    assert list(tmp_path.iterdir()) == []


def test_events_are_written_by_pytorchs_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            calls.append(folder)

        def add_scalar(self, *event: Any) -> None:
            calls.append(event)

        def flush(self) -> None:
            calls.append("flush")

    engine = engine_of(make(blocks=1), config(tensorboard={"enabled": True, "output_path": str(tmp_path)}))
    there = ModuleType("torch.utils.tensorboard")
    there.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", there)
    engine.monitor.write_events([("Eval/perplexity", 3.5, 1)])
    assert calls == [str(tmp_path / "DeepSpeedJobName"), ("Eval/perplexity", 3.5, 1), "flush"]
    engine.destroy()


def test_events_without_their_package_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(make(blocks=1), config(tensorboard={"enabled": True, "output_path": str(tmp_path)}))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
        engine.monitor.write_events([("Eval/perplexity", 3.5, 1)])
    engine.destroy()


def test_another_batch_size_is_another_number_of_micro_batches() -> None:
    other = engine_of(make(blocks=1), config(gradient_accumulation_steps=3))
    expected = train(other, range(2))
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=1))
    engine.set_train_batch_size(6)
    assert engine.get_batch_info() == (6, 2, 3)
    assert train(engine, range(2)) == expected
    assert (engine.global_steps, engine.global_samples) == (2, 12)
    # The log and the monitors have the mean of the micro-batches.
    assert engine._last.loss == pytest.approx(other._last.loss, rel=1e-6)
    engine.set_train_batch_size(2)
    for number in range(2):
        engine.backward(loss_of(engine(batch(number)[0]), batch(number)[1]))
        engine.step()
    assert engine.global_steps == 4
    engine.destroy()
    other.destroy()


def test_a_batch_size_that_cannot_be_is_an_error() -> None:
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=2))
    for size in (3, 0, -2, 2.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"train_batch_size is {size}: a step has a multiple of 2 samples"):
            engine.set_train_batch_size(size)  # type: ignore[arg-type]
    for value, kind in (("4", "of class str"), (None, "None"), (True, "of class bool"), ([4], "of class list")):
        with pytest.raises(TypeError, match=f"train_batch_size is {kind}: expected a number of samples"):
            engine.set_train_batch_size(value)  # type: ignore[arg-type]
    engine.set_train_batch_size(4.0)  # type: ignore[arg-type]  # a quotient of a script
    assert [type(count) for count in engine.get_batch_info()] == [int] * 3
    assert engine.get_batch_info() == (4, 2, 2)
    engine.backward(loss_of(engine(batch(0)[0]), batch(0)[1]))
    for _ in range(2):
        with pytest.raises(ValueError, match="a step has begun"):
            engine.set_train_batch_size(2)
        if engine.micro_steps == 0:
            engine.step()
    engine.destroy()


OFFLOAD = {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}}


def test_an_engine_says_what_its_configuration_has() -> None:
    engine = engine_of(make(blocks=1), {**config("device"), "zero_optimization": OFFLOAD})
    offload = engine.zero_offload_optimizer()
    assert offload is not None
    assert (offload.device, offload.pin_memory, engine.zero_offload_param()) == ("cpu", True, None)
    assert engine.zero_cpu_offload()
    assert engine.zero_use_cpu_optimizer()
    assert engine.zero_optimization_partition_gradients()
    assert engine.dp_world_size == 1
    assert not engine.dynamic_loss_scale()
    assert not engine.wall_clock_breakdown()
    engine.destroy()
    engine = engine_of(make(blocks=1), config("device", fp16={"enabled": True}, wall_clock_breakdown=True))
    assert engine.dynamic_loss_scale()
    assert engine.wall_clock_breakdown()
    assert not engine.zero_cpu_offload()
    assert not engine.zero_optimization_partition_gradients()
    engine.destroy()
    engine = engine_of(make(blocks=1), {**config("device"), "zero_optimization": {"stage": 2, "cpu_offload": True}})
    offload = engine.zero_offload_optimizer()
    assert offload is not None and offload.device == "cpu"
    assert engine.zero_cpu_offload() and engine.zero_use_cpu_optimizer() and engine.zero_offload_param() is None
    engine.destroy()
    engine = engine_of(make(blocks=1), config("device", fp16={"enabled": True, "loss_scale": 128}))
    assert not engine.dynamic_loss_scale()
    engine.destroy()


def test_a_rate_is_set_in_all_groups() -> None:
    engine = engine_of(make(blocks=1), config())
    engine.set_lr(0.5)
    assert engine.get_lr() == [0.5]
    engine.optimizer.set_lr(0.25)
    assert engine.get_lr() == [0.25]
    engine.destroy()


def test_modules_have_deepspeeds_paths() -> None:
    from sluice.ops.adam.cpu_adam import DeepSpeedCPUAdam
    from sluice.ops.adam.fused_adam import FusedAdam
    from sluice.utils.tensor_fragment import safe_get_full_fp32_param

    assert (DeepSpeedCPUAdam, FusedAdam) == (ops.adam.DeepSpeedCPUAdam, ops.adam.FusedAdam)
    assert safe_get_full_fp32_param is utils.safe_get_full_fp32_param is utils.tensor_fragment.safe_get_full_fp32_param
    assert adam.cpu_adam.DeepSpeedCPUAdam is DeepSpeedCPUAdam
    assert adam.fused_adam.FusedAdam is FusedAdam
    assert lion.cpu_lion.DeepSpeedCPULion is lion.DeepSpeedCPULion
    assert lion.fused_lion.FusedLion is lion.FusedLion
    assert adagrad.cpu_adagrad.DeepSpeedCPUAdagrad is adagrad.DeepSpeedCPUAdagrad


def test_calls_of_a_function_are_ranges_of_a_profile() -> None:
    @utils.instrument_w_nvtx
    def doubled(value: int) -> int:
        if value < 0:
            raise ValueError
        return 2 * value

    assert utils.nvtx.instrument_w_nvtx is utils.instrument_w_nvtx
    assert doubled.__name__ == "doubled"
    with torch.profiler.profile() as profile:
        assert doubled(2) == 4
        with pytest.raises(ValueError):
            doubled(-1)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert [count for key, count in counts.items() if key.endswith("doubled")] == [2]


def test_memory_is_printed_if_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    see_memory_usage("before the model")
    assert capsys.readouterr().out == ""
    see_memory_usage("before the model", force=True)
    first, device, host = capsys.readouterr().out.splitlines()
    assert first == "before the model"
    assert device.startswith("MA ")
    assert host.startswith("CPU Virtual Memory:  used = ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")
def test_the_cpus_accelerator_has_streams_and_a_peak_that_begins_anew() -> None:
    accelerator = get_accelerator()
    stream = accelerator.Stream()
    with accelerator.stream(stream):
        assert accelerator.current_stream() is not None
    assert accelerator.default_stream() is not None
    kept = torch.ones(64 * MEBIBYTE, dtype=torch.uint8)
    most = accelerator.max_memory_allocated()
    del kept
    for reset in (accelerator.reset_peak_memory_stats, accelerator.reset_max_memory_allocated, accelerator.reset_max_memory_cached):
        reset()
        assert accelerator.max_memory_allocated() < most - 60 * MEBIBYTE
    assert abs(accelerator.memory_cached() - accelerator.memory_allocated()) < 8 * MEBIBYTE
    assert accelerator.max_memory_cached() == accelerator.max_memory_allocated()
    with torch.profiler.profile() as profile:
        accelerator.range_push("a range")
        accelerator.range_pop()
    assert "a range" in {event.key for event in profile.key_averages()}


def test_what_has_no_such_part_says_why() -> None:
    with pytest.raises(AttributeError, match="DS_ACCELERATOR"):
        _ = sluice.accelerator.set_accelerator
    with pytest.raises(AttributeError, match="fork_rng"):
        _ = sluice.checkpointing.get_cuda_rng_tracker
