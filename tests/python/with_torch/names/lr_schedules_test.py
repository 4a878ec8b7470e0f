"""Each scheduler against its formula, written out: rates of ten updates, of two groups."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sluice.runtime import lr_schedules

RATES = (4e-3, 1e-3)  # of the groups


def optimizer() -> torch.optim.Optimizer:
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in RATES]
    return torch.optim.AdamW(groups, betas=(0.5, 0.6))


def log_warmup(step: int, length: int) -> float:
    return min(1.0, math.log(step + 1) / math.log(length))


def cosine(step: int) -> float:
    if step < 4:
        return 0.25 + 0.75 * step / 4
    part = min(1.0, (step - 4 + 1) / (9 - 4))
    return 0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2


def triangle(step: int) -> float:
    return 1 - abs((step + 1) % 8 - 4) / 4 if step < 8 else 0.0


# A scheduler, and the rate of the update after ``step`` steps of it, by the rate of the group.
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[int, float], float]]] = {
    "WarmupLR": (
        lambda o: lr_schedules.WarmupLR(o, warmup_max_lr=list(RATES), warmup_num_steps=4),
        lambda step, rate: rate * log_warmup(step, 4),
    ),
    "WarmupLR in a line": (
        lambda o: lr_schedules.WarmupLR(o, 1e-4, None, warmup_num_steps=5, warmup_type="linear"),
        lambda step, rate: 1e-4 + (rate - 1e-4) * min(1.0, step / 5),
    ),
    "WarmupDecayLR": (
        lambda o: lr_schedules.WarmupDecayLR(o, 8, 0.0, list(RATES), 4),
        lambda step, rate: rate * (log_warmup(step, 4) if step < 4 else max(0.0, (8 - step) / (8 - 4))),
    ),
    "WarmupCosineLR": (
        lambda o: lr_schedules.WarmupCosineLR(
            o, total_num_steps=9, warmup_min_ratio=0.25, warmup_num_steps=4, cos_min_ratio=0.1, warmup_type="linear"
        ),
        lambda step, rate: rate * cosine(step),
    ),
    "LRRangeTest": (
        lambda o: lr_schedules.LRRangeTest(o, list(RATES), 5, 2.0),
        lambda step, rate: rate * (1 + 2.0 * (step + 1) / 5),
    ),
    "LRRangeTest in stairs": (
        lambda o: lr_schedules.LRRangeTest(o, list(RATES), 5, 2.0, lr_range_test_staircase=True),
        lambda step, rate: rate * (1 + 2.0 * ((step + 1) // 5)),
    ),
    "OneCycle": (
        lambda o: lr_schedules.OneCycle(o, list(RATES), 1e-2, decay_lr_rate=0.5, cycle_first_step_size=4, decay_step_size=2),
        lambda step, rate: rate + (1e-2 - rate) * triangle(step) if step < 8 else rate / (1 + 0.5 * (step - 8 + 1) / 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rates_follow_the_formula(name: str) -> None:
    make, formula = CASES[name]
    groups = optimizer()
    schedule = make(groups)
    for step in range(10):
        schedule.step()
        expected = [formula(step, rate) for rate in RATES]
        assert [group["lr"] for group in groups.param_groups] == pytest.approx(expected, rel=1e-12)
        assert schedule.get_last_lr() == schedule.get_lr() == [group["lr"] for group in groups.param_groups]
    schedule.step(2)  # back
    assert schedule.get_last_lr() == pytest.approx([formula(2, rate) for rate in RATES], rel=1e-12)
    again = make(optimizer())
    again.load_state_dict(schedule.state_dict())
    again.step()
    assert again.get_last_lr() == pytest.approx([formula(3, rate) for rate in RATES], rel=1e-12)


def test_a_cycle_moves_the_first_beta_the_other_way() -> None:
    groups = optimizer()
    schedule = lr_schedules.OneCycle(groups, 1e-3, 1e-2, cycle_first_step_size=4, cycle_min_mom=0.8, cycle_max_mom=0.9)
    betas = []
    for _ in range(7):
        schedule.step()
        betas.append(groups.param_groups[0]["betas"])
    assert [first for first, _ in betas] == pytest.approx([0.875, 0.85, 0.825, 0.8, 0.825, 0.85, 0.875])
    assert {second for _, second in betas} == {0.99}
    still = lr_schedules.OneCycle(optimizer(), 1e-3, 1e-2, cycle_momentum=False)
    still.step()
    assert still.optimizer.param_groups[0]["betas"] == (0.5, 0.6)


def test_a_state_without_steps_has_the_values_of_a_new_schedule() -> None:
    groups = optimizer()
    schedule = lr_schedules.OneCycle(groups, 1e-3, 1e-2, cycle_first_step_size=4, cycle_min_mom=0.8, cycle_max_mom=0.9)
    expected = [dict(group) for group in groups.param_groups]
    state = schedule.state_dict()
    schedule.step()
    schedule.load_state_dict(state)
    assert [dict(group) for group in groups.param_groups] == expected
    assert groups.param_groups[0]["betas"] == (0.8, 0.99)


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest"])
def test_a_count_may_be_written_as_a_float(kind: str) -> None:
    """As the checker of configurations takes it."""
    name = "lr_range_test_step_size" if kind == "LRRangeTest" else "warmup_num_steps"
    others = {"total_num_steps": 1e1} if kind in ("WarmupDecayLR", "WarmupCosineLR") else {}
    rates = []
    for written in (4, 4.0):
        schedule = getattr(lr_schedules, kind)(optimizer(), **{name: written}, **others)
        for _ in range(6):
            schedule.step()
            rates.append(schedule.get_last_lr())
    assert rates[:6] == rates[6:]
    for wrong in (4.5, 0.0, float("inf"), "4"):
        with pytest.raises(ValueError, match=f"{name} is {wrong}: a positive integer is needed"):
            getattr(lr_schedules, kind)(optimizer(), **{name: wrong}, **others)
