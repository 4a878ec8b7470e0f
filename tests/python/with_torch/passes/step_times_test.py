"""`wall_clock_breakdown`: the line of times after each step of an engine."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train

LINE = re.compile(
    r"time \(ms\) \| fwd: (\d+\.\d\d) \| bwd: (\d+\.\d\d) \| bwd_inner: (\d+\.\d\d) \| bwd_allreduce: 0\.00 \| step: (\d+\.\d\d)"
)
SLEEP_SECONDS = 0.05


def times_of(caplog: pytest.LogCaptureFixture) -> list[list[float]]:
    """fwd, bwd, bwd_inner and step of each line, in milliseconds."""
    lines = [line for line in caplog.messages if line.startswith("time (ms)")]
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), lines
    return [list(map(float, match.groups())) for match in found if match]


class Slow(torch.nn.Linear):
    """Its forward takes 50 ms at least, and so does its backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(SLEEP_SECONDS)
        made = super().forward(x)
        if made.requires_grad:
            made.register_hook(lambda gradient: time.sleep(SLEEP_SECONDS))
        return made


@pytest.mark.parametrize("by_layer", [False, True])
def test_a_step_has_one_line_with_the_sums_of_its_micro_batches(caplog: pytest.LogCaptureFixture, by_layer: bool) -> None:
    keys = config(gradient_accumulation_steps=2, wall_clock_breakdown=True)
    engine = engine_of(torch.nn.Sequential(Slow(8, 8)), keys)
    data = [(torch.randn(2, 8), torch.zeros(2, 8)) for _ in range(4)]
    whole = time.perf_counter()
    with caplog.at_level(logging.INFO, "sluice"):
        for _ in range(2):
            engine.train_batch(iter(data), torch.nn.functional.mse_loss, by_layer=by_layer)
    whole_ms = 1e3 * (time.perf_counter() - whole)
    lines = times_of(caplog)
    assert len(lines) == 2
    for forward, backward, inner, step in lines:
        assert min(forward, backward) >= 2e3 * SLEEP_SECONDS
        assert backward == inner
        assert step > 0
    assert sum(forward + backward + step for forward, backward, _, step in lines) <= whole_ms
    engine.destroy()


def test_an_evaluation_between_steps_is_not_in_the_times(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(torch.nn.Sequential(Slow(8, 8)), config(wall_clock_breakdown=True))
    x = torch.randn(2, 8)
    with caplog.at_level(logging.INFO, "sluice"):
        with torch.no_grad():
            for _ in range(20):
                engine(x)
        engine.backward(engine(x).mean())
        engine.step()
    ((forward, *_),) = times_of(caplog)
    assert 1e3 * SLEEP_SECONDS <= forward < 15e3 * SLEEP_SECONDS
    engine.destroy()


@pytest.mark.parametrize("keys", [{}, {"wall_clock_breakdown": False}])
def test_without_the_key_there_is_no_line(caplog: pytest.LogCaptureFixture, keys: dict[str, Any]) -> None:
    engine = engine_of(make(blocks=1), config(**keys))
    with caplog.at_level(logging.INFO, "sluice"):
        train(engine, range(2))
    assert times_of(caplog) == []
    engine.destroy()


def test_the_key_changes_no_bit() -> None:
    losses = []
    for on in (False, True):
        engine = engine_of(make(blocks=1), config(wall_clock_breakdown=on))
        losses.append(train(engine, range(3)))
        ids, targets = batch(7)
        with torch.no_grad():
            losses[-1].append(loss_of(engine(ids), targets).item())
        engine.destroy()
    assert losses[0] == losses[1]
