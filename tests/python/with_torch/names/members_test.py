"""Members of engines and optimizers, and DeepSpeed's optimizers of GPUs, which scripts make before initialize()."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import batch, config, differences, engine_of, make, train, train_plain, without_optimizer

import sluice
from sluice.ops import adam, lion
from sluice.ops.adam import DeepSpeedCPUAdam


def test_an_engine_has_what_it_was_given() -> None:
    model = make(blocks=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)

    def collate(samples: list[Any]) -> Any:
        return torch.stack([sample[0][0] for sample in samples])

    engine, _, loader, returned = sluice.initialize(
        model=model,
        config=without_optimizer(gradient_accumulation_steps=2),
        optimizer=optimizer,
        lr_scheduler=schedule,
        training_data=[batch(number) for number in range(8)],
        collate_fn=collate,
    )
    assert (engine.client_optimizer, engine.client_lr_scheduler) == (optimizer, schedule)
    assert engine.lr_scheduler is returned is schedule
    assert engine.training_dataloader is loader
    assert engine.collate_fn is collate
    assert next(iter(loader)).shape == (2, 16)
    assert (engine.global_rank, engine.local_rank, engine.world_size) == (0, 0, 1)
    train(engine, range(3))
    assert (engine.global_samples, engine.global_steps, engine.micro_steps, engine.skipped_steps) == (12, 3, 6, 0)
    assert engine.optimizer.optimizer.param_groups is optimizer.param_groups
    engine.destroy()


def test_libraries_that_generate_take_hooks_away_and_put_them_back() -> None:
    engine = engine_of(make())
    expected = train(engine, range(2))
    engine.destroy()
    engine = engine_of(make())
    mine = train(engine, range(1))
    offload = engine.optimizer.parameter_offload
    with sluice.zero.GatheredParameters(engine.parameters()):
        for _, parameter in [*offload.module.named_parameters(), *offload.module.ds_external_parameters()]:
            parameter.ds_active_sub_modules.clear()
        for hook in [*offload.forward_hooks, *offload.backward_hooks]:
            hook.remove()
        offload.forward_hooks, offload.backward_hooks = [], []
        with torch.no_grad():
            logits = engine.module(batch(7)[0])
        offload._register_deepspeed_module(offload.module)
    with torch.no_grad():
        assert torch.equal(engine(batch(7)[0]), logits)
    assert mine + train(engine, range(1, 2)) == expected
    engine.destroy()


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "FusedAdam": (lambda p: adam.FusedAdam(p, lr=1e-3, weight_decay=0.1), lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1)),
    "FusedAdam, coupled": (
        lambda p: adam.FusedAdam(p, lr=1e-3, weight_decay=0.1, adam_w_mode=False),
        lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1),
    ),
    "DeepSpeedCPUAdam, coupled": (
        lambda p: DeepSpeedCPUAdam(p, lr=1e-3, weight_decay=0.1, adamw_mode=False),
        lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_engine_takes_over_deepspeeds_optimizers(name: str) -> None:
    mine, theirs = OPTIMIZERS[name]
    plain = make()
    expected = train_plain(plain, theirs(plain.parameters()), range(12))
    model = make()
    engine = engine_of(model, without_optimizer(), optimizer=mine(model.parameters()))
    assert differences(train(engine, range(12)), expected) < 1e-6
    engine.destroy()


@pytest.mark.parametrize(
    ("fused", "host"), [(adam.FusedAdam, adam.DeepSpeedCPUAdam), (lion.FusedLion, lion.DeepSpeedCPULion)]
)
def test_fused_optimizers_step_as_those_of_the_host(fused: Any, host: Any) -> None:
    weights = []
    for kind in (fused, host):
        model = make(blocks=1)
        train_plain(model, kind(model.parameters(), lr=1e-3, weight_decay=0.1), range(3))
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())


def test_fused_optimizers_keep_gradients_if_they_are_told() -> None:
    for kind, keeps in ((adam.FusedAdam, True), (lion.FusedLion, True), (adam.FusedAdam, False)):
        model = make(blocks=1)
        optimizer = kind(model.parameters(), set_grad_none=not keeps)
        train_plain(model, optimizer, range(1))
        assert all((p.grad is not None) == keeps for p in model.parameters())


def test_what_deepspeeds_optimizers_refuse_is_refused() -> None:
    model = make(blocks=1)
    with pytest.raises(RuntimeError, match="AMSGrad"):
        adam.FusedAdam(model.parameters(), amsgrad=True)
    optimizer = DeepSpeedCPUAdam(model.parameters(), fp32_optimizer_states=False)
    with pytest.raises(ValueError, match='"moments": "bf16"'):
        engine_of(model, without_optimizer(), optimizer=optimizer)


def test_names_of_the_package(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(sluice.DeepSpeedConfigError, match="stage"):
        engine_of(make(), config(zero_optimization={"stage": 9}))
    assert sluice.DeepSpeedConfigError is sluice.config.ConfigError
    assert sluice.get_accelerator().device_name() == "cpu"
    with caplog.at_level(logging.INFO, logger="sluice"):
        sluice.log_dist("a line", ranks=[0])
    assert "a line" in caplog.text
