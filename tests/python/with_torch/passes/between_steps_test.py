"""Calls between a backward and its step, and steps without a backward, change no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import MEMORY_OF_ITS_OWN, Tied, batch, config, differences, engine_of, loss_of, make
from torch import nn

import sluice

STEPS = 5
IN_PLACE = {"device": "host"}


def course(between: Callable[[Any], Any], keys: dict[str, Any]) -> list[float]:
    engine = engine_of(make(Tied), config(sluice=keys))
    losses = []
    for step in range(STEPS):
        ids, targets = batch(step)
        loss = loss_of(engine(ids), targets)
        losses.append(loss.item())
        engine.backward(loss)
        between(engine)
        engine.step()
    engine.destroy()
    return losses


def look_without_gradients(engine: Any) -> None:
    with torch.no_grad():
        engine(batch(77)[0])


# A forward of a model in training gathers ahead for a backward.
@pytest.mark.parametrize("keys", [IN_PLACE, MEMORY_OF_ITS_OWN], ids=["in_place", "memory_of_its_own"])
@pytest.mark.parametrize("between", [look_without_gradients, lambda engine: engine(batch(77)[0])], ids=["no_grad", "dropped_loss"])
def test_a_forward_before_a_step_leaves_no_old_weights(between: Callable[[Any], Any], keys: dict[str, Any]) -> None:
    assert course(between, keys) == course(lambda engine: None, keys)


def wide() -> nn.Module:
    """So large that an update takes some time."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.Tanh()) for _ in range(2)))


# AdamW moves weights by its moments where gradients are zero.
@pytest.mark.parametrize("keys", [IN_PLACE, MEMORY_OF_ITS_OWN], ids=["in_place", "memory_of_its_own"])
def test_a_step_without_a_backward_waits_for_the_one_before(keys: dict[str, Any]) -> None:
    data = torch.randn(STEPS, 2, 2048, generator=torch.Generator().manual_seed(0))
    plain, expected, losses = wide(), [], []
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    for inputs in data:
        loss = plain(inputs).square().mean()
        expected.append(loss.item())
        loss.backward()
        for _ in range(2):
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    engine = engine_of(wide(), config(sluice=keys))
    for inputs in data:
        loss = engine(inputs).square().mean()
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
        engine.step()
    engine.destroy()
    assert differences(losses, expected) < 1e-5


# Two micro-batches, the first of which has a gradient that is no number until the script sets others.
@pytest.mark.parametrize("keys", [IN_PLACE, MEMORY_OF_ITS_OWN], ids=["in_place", "memory_of_its_own"])
@pytest.mark.parametrize("mended_after", [0, 1])
def test_a_gradient_that_was_mended_is_no_reason_to_skip(mended_after: int, keys: dict[str, Any]) -> None:
    engine = engine_of(make(Tied), config(sluice=keys, gradient_accumulation_steps=2, gradient_clipping=1.0))
    for part in range(2):
        ids, targets = batch(part)
        loss = loss_of(engine(ids), targets)
        engine.backward(loss + torch.sqrt(loss - loss.detach()) if part == 0 else loss)
        if part == mended_after:
            for parameter in engine.module.parameters():
                sluice.utils.safe_set_full_grad(parameter, torch.full(parameter.ds_shape, 0.01))
        engine.step()
    assert (engine.global_steps, engine.skipped_steps) == (1, 0)
    assert engine.get_global_grad_norm() > 0
    engine.destroy()


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise ArithmeticError


def test_a_failed_backward_of_an_engine_says_that_gradients_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make(Tied), config(gradient_accumulation_steps=2))
    ids, targets = batch(0)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    with pytest.raises(ArithmeticError):
        engine.backward(_Fails.apply(loss_of(engine(ids), targets)))
    assert "a backward has failed: the gradients of this step so far are dropped" in caplog.text
    engine.destroy()


def test_weights_are_read_after_a_backward_that_failed() -> None:
    engine = engine_of(make(Tied))
    before = {name: value.clone() for name, value in engine.module_state_dict().items()}
    ids, targets = batch(0)
    reads: list[Callable[[], Any]] = [
        engine.module_state_dict,
        lambda: sluice.utils.safe_get_full_fp32_param(engine.module.position),
        lambda: sluice.utils.safe_get_full_grad(engine.module.position),
    ]
    for read in reads:
        loss = loss_of(engine(ids), targets)
        handle = engine.module.blocks[1].register_forward_hook(lambda *call: _Fails.apply(call[2]))
        failing = loss_of(engine(ids), targets)
        handle.remove()
        loss.backward()
        with pytest.raises(ArithmeticError):
            failing.backward()
        read()
    assert all(torch.equal(value, before[name]) for name, value in engine.module_state_dict().items())
    engine.destroy()
