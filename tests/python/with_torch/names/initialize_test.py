"""sluice.initialize and what scripts call before it; modules that scripts import."""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path

import pytest
import torch
from small_models import config, make, train, without_optimizer

import sluice
from sluice import checkpoint, ops, runtime
from sluice.ops.adagrad import DeepSpeedCPUAdagrad
from sluice.ops.adam import DeepSpeedCPUAdam
from sluice.ops.lion import DeepSpeedCPULion


def test_the_log_says_which_keys_mean_something_else_here(caplog: pytest.LogCaptureFixture) -> None:
    keys = config()
    keys["zero_optimization"]["overlap_comm"] = True
    with caplog.at_level(logging.INFO, "sluice"):
        engine, *_ = sluice.initialize(model=make(blocks=1), config=keys)
    engine.destroy()
    assert [line for line in caplog.messages if line.startswith("mapped: zero_optimization.overlap_comm:")], caplog.messages


def test_a_scripts_arguments_have_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config(gradient_accumulation_steps=3)))
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    assert sluice.add_config_arguments(parser) is parser
    without = parser.parse_args(["--lr", "1"])
    assert (without.lr, without.deepspeed, without.deepspeed_config) == (1, False, None)
    args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(path)])
    assert args.deepspeed
    engine, optimizer, loader, scheduler = sluice.initialize(args, make(blocks=1))
    assert engine.gradient_accumulation_steps() == 3
    assert optimizer is engine.optimizer
    assert (loader, scheduler) == (None, None)
    train(engine, range(1))
    assert engine.global_steps == 1
    engine.destroy()
    with pytest.raises(ValueError, match="two configurations"):
        sluice.initialize(args, make(), config=config())
    with pytest.raises(ValueError, match="configuration is missing"):
        sluice.initialize(without, make())


def test_the_older_name_of_the_configuration_and_functions_that_make_parts() -> None:
    keys = without_optimizer()
    engine, optimizer, _, scheduler = sluice.initialize(
        model=make(blocks=1),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.5),
        lr_scheduler=lambda made: runtime.lr_schedules.WarmupLR(made, warmup_max_lr=0.25, warmup_num_steps=2),
        config_params=keys,
    )
    assert engine.optimizer_name() == "AdamW"
    assert scheduler.optimizer is optimizer
    train(engine, range(3))
    assert engine.get_lr() == [0.25]
    engine.destroy()
    with pytest.raises(ValueError, match="mesh_param"):
        sluice.initialize(model=make(), config=config(), mesh_param=(1, 1))


# The first update of a weight of 1 by a gradient of 2, from zero states: a rate times a direction of 1.
OPTIMIZERS = {
    "adam": (lambda weights: ops.adam.DeepSpeedCPUAdam(weights, lr=0.25, eps=0), ops.adam.DeepSpeedCPUAdam, DeepSpeedCPUAdam),
    "adagrad": (
        lambda weights: ops.adagrad.DeepSpeedCPUAdagrad(weights, lr=0.25, eps=0),
        ops.adagrad.DeepSpeedCPUAdagrad,
        DeepSpeedCPUAdagrad,
    ),
    "lion": (lambda weights: ops.lion.DeepSpeedCPULion(weights, lr=0.25), ops.lion.DeepSpeedCPULion, DeepSpeedCPULion),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_module_of_operators_has_its_optimizer(name: str) -> None:
    make_optimizer, kind, imported = OPTIMIZERS[name]
    assert kind is imported
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 2.0)
    optimizer = make_optimizer([weight])
    assert isinstance(optimizer, torch.optim.Optimizer)
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.75] * 3)


def test_clones_for_saving_have_storage_of_their_own() -> None:
    whole = torch.arange(10.0)
    made = sluice.checkpoint.utils.clone_tensors_for_torch_save({"part": whole[2:4], "rest": [whole, "text"]})
    assert made["part"].untyped_storage().nbytes() == 8
    assert made["rest"][0].data_ptr() != whole.data_ptr()
    assert made["rest"][1] == "text"
    assert torch.equal(made["part"], whole[2:4])
    assert checkpoint.utils is sluice.checkpoint.utils
