"""`fp16.auto_cast`: floating-point arguments of a model become fp16, as in DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn

FP16 = {"fp16": {"enabled": True, "initial_scale_power": 4, "auto_cast": True}}


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 1)
        self.seen: list[Any] = []

    def forward(self, x: Any, rows: Any = None, scale: Any = None) -> torch.Tensor:
        if isinstance(x, dict):
            x = x["x"][0]
        self.seen.append((x.dtype, None if rows is None else rows.dtype, None if scale is None else scale.dtype))
        return self.down(torch.relu(self.up(x)))


def made(**keys: Any) -> Any:
    torch.manual_seed(0)
    return engine_of(Regression(), config(**keys))


def test_floating_point_arguments_become_fp16() -> None:
    engine = made(**FP16)
    assert engine.fp16_auto_cast()
    x = torch.randn(2, 8)
    for given in (x, {"x": [x]}):
        loss = engine(given, torch.arange(2), scale=torch.ones(1)).float().square().mean()
        engine.backward(loss)
        engine.step()
    # Keywords stay as they are, and whole numbers too.
    assert engine.module.seen == [(torch.float16, torch.int64, torch.float32)] * 2
    assert x.dtype == torch.float32
    engine.destroy()


def test_a_step_layer_by_layer_casts_too() -> None:
    torch.manual_seed(0)
    engine = engine_of(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1)), config(**FP16))
    batches = iter([(torch.randn(2, 8), torch.randn(2, 1))])
    loss = engine.train_batch(batches, loss_fn=lambda y, target: (y.float() - target).square().mean(), by_layer=True)
    assert torch.isfinite(loss)
    engine.destroy()


@pytest.mark.parametrize("keys", [{}, {"fp16": {"enabled": False, "auto_cast": True}}])
def test_without_fp16_nothing_is_cast(keys: dict[str, Any]) -> None:
    engine = made(**keys)
    assert not engine.fp16_auto_cast()
    engine(torch.randn(2, 8))
    assert engine.module.seen[0][0] == torch.float32
    engine.destroy()


def test_a_key_without_an_effect_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="sluice"):
        engine = made(flops_profiler={"enabled": True, "output_file": "flops.txt"}, memory_breakdown=True)
    warned = [record.getMessage().split(" ")[0] for record in caplog.records if record.levelname == "WARNING"]
    assert sorted(warned) == ["flops_profiler", "memory_breakdown"]
    engine.destroy()
