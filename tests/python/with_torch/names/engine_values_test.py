"""What an engine says about its configuration, its optimizer and its last step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train, without_optimizer

import sluice

Engine = sluice.SluiceEngine

BF16 = {"bf16": {"enabled": True}}
BF16_FP32_SUMS = {**BF16, "data_types": {"grad_accum_dtype": "fp32"}}
FP16 = {"fp16": {"enabled": True, "initial_scale_power": 10}}

# A method, the configuration beside small_models.config("device"), and what the method returns.
VALUES: list[tuple[Callable[[Engine], Any], dict[str, Any], Any]] = [
    (lambda engine: engine.train_batch_size(), {"gradient_accumulation_steps": 3}, 6),
    (lambda engine: engine.train_micro_batch_size_per_gpu(), {"gradient_accumulation_steps": 3}, 2),
    (lambda engine: engine.gradient_accumulation_steps(), {"gradient_accumulation_steps": 3}, 3),
    (lambda engine: engine.get_batch_info(), {"gradient_accumulation_steps": 3}, (6, 2, 3)),
    (lambda engine: engine.gradient_clipping(), {"gradient_clipping": 0.25}, 0.25),
    (lambda engine: engine.gradient_clipping(), {"gradient_clipping": 0}, 0),
    (lambda engine: engine.steps_per_print(), {}, None),
    (lambda engine: engine.steps_per_print(), {"steps_per_print": 7}, 7),
    (lambda engine: engine.zero_optimization_stage(), {}, 0),
    (lambda engine: engine.zero_optimization(), {}, False),
    (lambda engine: engine.zero_optimization(), {"zero_optimization": {"stage": 1}}, True),
    (lambda engine: engine.zero_optimization_stage(), {"zero_optimization": {"stage": 2}}, 2),
    (lambda engine: engine.zero_optimization_partition_weights(), {"zero_optimization": {"stage": 2}}, False),
    (lambda engine: engine.zero_optimization_partition_weights(), {"zero_optimization": {"stage": 3}}, True),
    # Weights are saved in either case (docs/from_deepspeed.md).
    (lambda engine: engine.zero_gather_16bit_weights_on_model_save(), {"zero_optimization": {"stage": 3}}, True),
    (lambda engine: engine.bfloat16_enabled(), {}, False),
    (lambda engine: engine.bfloat16_enabled(), BF16, True),
    (lambda engine: engine.fp16_enabled(), BF16, False),
    (lambda engine: engine.fp16_enabled(), FP16, True),
    (lambda engine: engine.get_data_types(), {}, (torch.float32, torch.float32)),
    (lambda engine: engine.get_data_types(), BF16, (torch.bfloat16, torch.bfloat16)),
    (lambda engine: engine.get_data_types(), BF16_FP32_SUMS, (torch.bfloat16, torch.float32)),
    (lambda engine: engine.get_data_types(), FP16, (torch.float16, torch.float16)),
    (lambda engine: engine.optimizer.cur_scale, {}, 1),
    (lambda engine: engine.optimizer.loss_scale, FP16, 1024),
    (lambda engine: engine.get_lr(), {}, [1e-3]),
    (lambda engine: engine.get_mom(), {}, [(0.9, 0.999)]),
    (lambda engine: engine.optimizer_params(), {}, {"lr": 1e-3, "weight_decay": 0.01}),
    (lambda engine: engine.scheduler_name(), {}, None),
    (lambda engine: engine.scheduler_params(), {}, None),
    (lambda engine: engine.scheduler_name(), {"scheduler": {"type": "WarmupLR", "params": {}}}, "WarmupLR"),
    (
        lambda engine: engine.scheduler_params(),
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4}}},
        {"warmup_num_steps": 4},
    ),
    (lambda engine: engine.get_global_grad_norm(), {}, None),
    (lambda engine: engine.was_step_applied(), {}, False),
    (lambda engine: engine.is_gradient_accumulation_boundary(), {}, True),
    (lambda engine: engine.is_gradient_accumulation_boundary(), {"gradient_accumulation_steps": 2}, False),
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_an_engine_has_the_value_of_its_configuration(number: int) -> None:
    method, keys, expected = VALUES[number]
    engine = engine_of(make(blocks=1), config("device", **keys))
    found = method(engine)
    engine.destroy()
    assert found == expected


# The "type" of the configuration, the name that DeepSpeed has for it, and the momentum of each group.
NAMED: dict[str, tuple[dict[str, Any], str, Any]] = {
    "AdamW": ({"lr": 0.5, "betas": [0.8, 0.9]}, "adamw", (0.8, 0.9)),
    "Adam": ({"lr": 0.5}, "adam", (0.9, 0.999)),
    "Lion": ({"lr": 0.5, "betas": [0.8, 0.9]}, "lion", (0.8, 0.9)),
    "Adagrad": ({"lr": 0.5}, "adagrad", 0.0),  # it has neither
    "SGD": ({"lr": 0.5, "momentum": 0.75}, "SGD", 0.75),
}


@pytest.mark.parametrize("kind", NAMED)
def test_an_optimizer_is_named_and_has_its_momentum(kind: str) -> None:
    params, name, momentum = NAMED[kind]
    engine = engine_of(make(blocks=1), config("device", optimizer={"type": kind, "params": params}))
    assert (engine.optimizer_name(), engine.optimizer_params()) == (name, params)
    assert [tuple(found) if isinstance(found, (list, tuple)) else found for found in engine.get_mom()] == [momentum]
    assert engine.get_lr() == [0.5]
    engine.destroy()


def test_an_approximated_optimizer_is_a_warning_and_named_as_what_trains(caplog: pytest.LogCaptureFixture) -> None:
    keys = config("device", optimizer={"type": "Lamb", "params": {"lr": 0.5}}, sluice={"device": "host", "approximate": True})
    with caplog.at_level("INFO", logger="sluice"):
        engine = engine_of(make(blocks=1), {**keys, "zero_optimization": {"overlap_comm": True}})
    levels = {record.getMessage().split(": ")[1]: record.levelname for record in caplog.records}
    assert (levels["optimizer.type"], levels["zero_optimization.overlap_comm"]) == ("WARNING", "INFO")
    assert engine.optimizer_name() == "adamw"
    engine.destroy()


def test_a_clients_optimizer_is_named_by_its_class() -> None:
    model = make(blocks=1)
    keys = without_optimizer("device")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    engine = engine_of(model, keys, optimizer=optimizer)
    assert (engine.optimizer_name(), engine.optimizer_params()) == ("SGD", None)
    assert (engine.get_mom(), engine.get_lr()) == ([0.5], [0.1])
    optimizer.param_groups[0]["lr"] = 0.25
    assert engine.get_lr() == [0.25]
    engine.destroy()


def test_a_step_is_applied_at_the_boundary_only() -> None:
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=2))
    ids, targets = batch(0)
    seen = []
    for _ in range(4):
        engine.backward(loss_of(engine(ids), targets))
        at_boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        seen.append((at_boundary, engine.was_step_applied(), engine.global_steps))
    assert seen == [(False, False, 0), (True, True, 1), (False, False, 1), (True, True, 2)]
    engine.destroy()


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_the_norm_is_that_of_all_gradients_before_clipping(clip: float) -> None:
    model = make(blocks=1)
    ids, targets = batch(0)
    loss_of(model(ids), targets).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item()
    engine = engine_of(make(blocks=1), config(gradient_clipping=clip))
    train(engine, range(1))
    assert engine.get_global_grad_norm() == pytest.approx(expected, rel=1e-5)
    engine.destroy()


def test_the_scale_of_the_optimizer_is_halved_by_an_overflow() -> None:
    engine, optimizer, _, _ = sluice.initialize(
        model=make(blocks=1), config=config(fp16={"enabled": True, "initial_scale_power": 32, "hysteresis": 1})
    )
    assert optimizer.cur_scale == optimizer.loss_scale == 2**32
    train(engine, range(1))
    assert not engine.was_step_applied()
    assert optimizer.cur_scale == optimizer.loss_scale == 2**31
    engine.destroy()


def test_the_log_has_a_line_for_every_printed_step(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make(blocks=1), config(steps_per_print=2))
    with caplog.at_level("INFO", logger="sluice"):
        train(engine, range(5))
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("step=")]
    assert [line.split(",")[0] for line in lines] == ["step=2", "step=4"]
    engine.destroy()


def test_classes_have_deepspeeds_names_too(tmp_path: Path) -> None:
    engine, optimizer, _, _ = sluice.initialize(model=make(blocks=1), config=config())
    assert type(engine) is sluice.DeepSpeedEngine is sluice.SluiceEngine
    assert type(optimizer) is sluice.DeepSpeedOptimizer is sluice.SluiceOptimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert {"DeepSpeedEngine", "DeepSpeedOptimizer"} <= set(dir(sluice))
    engine.destroy()
