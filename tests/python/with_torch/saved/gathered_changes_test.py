"""Changes inside GatheredParameters touch the masters of the elements that changed, and of no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn

from sluice import utils, zero


def bf16_engine() -> tuple[Any, nn.Parameter]:
    """After steps whose masters are between two numbers of bf16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    keys = config(bf16={"enabled": True}, optimizer={"type": "AdamW", "params": {"lr": 1e-5}})
    engine = engine_of(model, keys)
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 8, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
    return engine, model[0].weight


def test_other_elements_keep_their_masters() -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    assert not torch.equal(expected, expected.bfloat16().float())
    expected[0] = 0
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight[0] = 0
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    assert torch.equal(engine.module_state_dict()["0.weight"], expected.bfloat16())
    expected[1, 0] = -0.0
    for value in (0.0, -0.0):
        with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            weight[1, 0] = value
    assert torch.equal(torch.signbit(utils.safe_get_full_fp32_param(weight)), torch.signbit(expected))
    engine.destroy()


@pytest.mark.parametrize("outer", [None, 0])
def test_changes_of_inner_contexts_add_up(outer: int | None) -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    expected[:2] = 1
    with zero.GatheredParameters(weight, modifier_rank=outer), torch.no_grad():
        for row in range(2):
            with zero.GatheredParameters(weight, modifier_rank=0):
                weight[row] = 1
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    engine.destroy()


def test_a_change_that_an_outer_context_takes_back_is_none() -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        before = weight.clone()
        with zero.GatheredParameters(weight, modifier_rank=0):
            weight[0] = 1
        weight.copy_(before)
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    assert torch.equal(engine.module_state_dict()["0.weight"], expected.bfloat16())
    engine.destroy()
