"""Backwards with and without the loss scale of fp16, and the losses that steps know of."""

from __future__ import annotations

import logging

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train

import sluice

FP16 = {"enabled": True, "initial_scale_power": 10}


def loss_under(engine: sluice.SluiceEngine, number: int = 0) -> torch.Tensor:
    ids, targets = batch(number)
    return loss_of(engine(ids), targets)


def test_a_step_of_fp16_refuses_gradients_without_the_loss_scale() -> None:
    """They would be divided by a scale of 1024 that nobody applied."""
    engine = engine_of(make(blocks=1), config(fp16=FP16))
    norm_of_engine = []
    for _ in range(2):
        loss_under(engine).backward()
        with pytest.raises(ValueError, match=r"without the loss scale of fp16, 1024.*engine\.backward\(loss\)"):
            engine.step()
        assert (engine.global_steps, engine.micro_steps) == (0, 0)
        engine.zero_grad()
    engine.backward(loss_under(engine))
    engine.step()
    norm_of_engine.append(engine.get_global_grad_norm())
    assert engine.global_steps == 1
    engine.destroy()

    other = engine_of(make(blocks=1), config(fp16={"enabled": True, "loss_scale": 1}))
    loss_under(other).backward()  # nothing to apply
    other.step()
    assert other.get_global_grad_norm() == pytest.approx(norm_of_engine[0], rel=1e-2)
    other.destroy()


def test_the_first_of_several_micro_batches_counts_too() -> None:
    engine = engine_of(make(blocks=1), config(fp16=FP16, gradient_accumulation_steps=2))
    loss_under(engine).backward()
    engine.step()
    engine.backward(loss_under(engine, 1))
    with pytest.raises(ValueError, match="without the loss scale"):
        engine.step()
    engine.destroy()


def test_a_loss_may_be_scaled_for_a_backward_of_the_scripts() -> None:
    norms = []
    for by_engine in (True, False):
        engine = engine_of(make(blocks=1), config(fp16=FP16, gradient_accumulation_steps=2))
        for number in range(2):
            loss = loss_under(engine, number)
            if by_engine:
                engine.backward(loss)
            else:
                engine.scale(loss).backward()
            engine.step()
        norms.append(engine.get_global_grad_norm())
        assert engine.global_steps == 1
        with pytest.raises(ValueError, match="a loss of one element"):
            engine.scale(engine(batch(0)[0]))
        engine.destroy()
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize("after", ["engine", "module", "zero_grad"])
def test_a_scaled_backward_that_fails_scales_no_other_one(after: str) -> None:
    def fail(gradient: torch.Tensor) -> None:
        raise RuntimeError("on purpose")

    engine = engine_of(make(blocks=1), config(fp16=FP16))
    loss_again = loss_under(engine)
    loss = loss_again * 1.0
    loss.register_hook(fail)
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.scale(loss).backward(retain_graph=True)
    if after == "zero_grad":
        loss = loss_again
        engine.zero_grad()
    else:
        ids, targets = batch(0)
        loss = loss_of((engine if after == "engine" else engine.module)(ids), targets)
    loss.backward()
    with pytest.raises(ValueError, match="without the loss scale"):
        engine.step()
    engine.destroy()


def test_gradients_of_inputs_need_no_scale() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    engine = engine_of(model, config(fp16=FP16))
    x = torch.randn(2, 8, dtype=torch.float16, requires_grad=True)
    (gradient,) = torch.autograd.grad(engine(x).float().sum(), x)
    assert gradient.abs().max() > 0
    engine.backward(engine(x.detach()).float().square().mean())
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def test_gradients_of_inputs_do_without_a_parameter_that_is_frozen_for_a_while() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    engine = engine_of(model, config(fp16=FP16))
    x = torch.randn(2, 8, dtype=torch.float16, requires_grad=True)
    (expected,) = torch.autograd.grad(engine(x).float().sum(), x)
    model[0].weight.requires_grad_(False)
    (gradient,) = torch.autograd.grad(engine(x).float().sum(), x)
    torch.testing.assert_close(gradient, expected)
    model[0].weight.requires_grad_(True)
    engine.backward(engine(x.detach()).float().square().mean())
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def test_another_engines_backward_may_pass_through_and_is_dropped() -> None:
    """As a generator's loss passes through its discriminator."""
    first, second = (torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)) for _ in range(2))
    generator, discriminator = engine_of(first, config(fp16=FP16)), engine_of(second, config(fp16=FP16))
    x = torch.randn(2, 8, dtype=torch.float16)
    generator.backward(discriminator(generator(x)).float().mean())
    generator.step()
    discriminator.zero_grad()
    discriminator.backward(discriminator(x).float().mean())
    discriminator.step()
    assert (generator.global_steps, discriminator.global_steps) == (1, 1)
    generator.destroy()
    discriminator.destroy()


def test_a_whole_step_by_layers_is_scaled() -> None:
    engine = engine_of(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)), config(fp16=FP16))
    data = iter([(torch.randn(2, 8, dtype=torch.float16), torch.zeros(2, 8))])
    engine.train_batch(data, lambda output, target: (output.float() - target).square().mean(), by_layer=True)
    assert engine.global_steps == 1
    engine.destroy()


def test_the_printed_line_has_a_loss_only_where_the_engine_was_told_one(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make(blocks=1), config(steps_per_print=1))
    with caplog.at_level(logging.INFO, "sluice"):
        train(engine, range(1))
        loss_under(engine).backward()
        engine.step()
        train(engine, range(1))
    lines = [line for line in caplog.messages if line.startswith("step=")]
    assert ["loss=" in line for line in lines] == [True, False, True], lines
    engine.destroy()
