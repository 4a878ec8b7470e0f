"""The configuration's schedule over parameter groups with rates of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import config, engine_of, make, train
from torch import nn

import sluice
from sluice.runtime import lr_schedules

SECTIONS: dict[str, dict[str, Any]] = {
    "WarmupLR": {"warmup_num_steps": 3},
    "WarmupLR to a rate": {"warmup_num_steps": 3, "warmup_max_lr": 2e-3},
    "WarmupDecayLR": {"warmup_num_steps": 2, "total_num_steps": 5, "warmup_max_lr": 2e-3},
    "WarmupCosineLR": {"warmup_num_steps": 2, "total_num_steps": 5},
    "OneCycle": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 2},
    "LRRangeTest": {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 2},
}


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    first, *others = model.parameters()
    return [{"params": others}, {"params": [first], "lr": 1e-5}]


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [group["lr"] for group in optimizer.param_groups]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("way", ["client", "model_parameters", "offload"])
def test_groups_of_a_script_have_the_rates_of_deepspeeds_object(name: str, way: str) -> None:
    kind = name.split()[0]
    keys = config("device", scheduler={"type": kind, "params": SECTIONS[name]})
    plain = torch.optim.AdamW(groups_of(small()), lr=1e-3)
    schedule = getattr(lr_schedules, kind)(plain, **SECTIONS[name])
    model = small()
    client = torch.optim.AdamW(groups_of(model), lr=1e-3)
    if way == "offload":
        optimizer: Any = sluice.offload(model, keys, optimizer=client)
    elif way == "client":
        _, optimizer, _, _ = sluice.initialize(model=model, config=keys, optimizer=client)
    else:
        _, optimizer, _, _ = sluice.initialize(model=model, config=keys, model_parameters=groups_of(model))
    mine, theirs = [], []
    for _ in range(6):
        mine.append(rates_of(optimizer))
        theirs.append(rates_of(plain))
        model(torch.ones(2, 8)).mean().backward()
        optimizer.step()
        schedule.step()
    assert mine == theirs
    optimizer.close() if way == "offload" else optimizer._engine.destroy()


def test_groups_of_the_configuration_are_scaled_in_proportion() -> None:
    keys = config("device", scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_max_lr": 2e-3}})
    keys["sluice"]["groups"] = [{"match": "embedding.weight", "lr": 1e-4}]
    engine = engine_of(make(), keys)
    train(engine, range(3))
    rate = engine.loop.scheduled_rate(4)
    assert rate > 0
    assert sorted(engine.get_lr()) == [pytest.approx(rate * 0.1), rate]
    engine.destroy()


@pytest.mark.parametrize("way", ["client", "configuration"])
def test_no_warmup_is_the_shortest_one(way: str) -> None:
    rates = []
    for steps in (0, 1):
        model = small()
        section = {"type": "WarmupLR", "params": {"warmup_num_steps": steps, "warmup_max_lr": 0.5}}
        client = torch.optim.AdamW(model.parameters(), lr=1e-3) if way == "client" else None
        engine = sluice.initialize(model=model, config=config("device", scheduler=section), optimizer=client)[0]
        rates.append([engine.get_lr()])
        for _ in range(4):
            engine.backward(engine(torch.ones(2, 8)).mean())
            engine.step()
            rates[-1].append(engine.get_lr())
        engine.destroy()
    assert rates[0] == rates[1]
    assert rates[0][-1] == [0.5]
