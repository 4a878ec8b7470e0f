"""Passes of an engine: backward, boundaries, no_sync, and what is left between passes and after the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train

from sluice import utils


def gradient(engine: Any) -> torch.Tensor:
    found = utils.safe_get_full_grad(engine.module.blocks[0].up.weight)
    assert found is not None
    return found


@pytest.mark.parametrize(("scaled", "expected"), [(True, 0.25), (False, 1.0)])
def test_backward_divides_by_the_micro_batches_unless_told(scaled: bool, expected: float) -> None:
    model = make(blocks=1)
    ids, targets = batch(0)
    plain = loss_of(model(ids), targets)
    plain.backward()
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=4))
    loss = loss_of(engine(ids), targets)
    returned = engine.backward(loss, scale_wrt_gas=scaled)
    assert returned.item() == pytest.approx(plain.item() * expected, rel=1e-6)
    torch.testing.assert_close(gradient(engine), model.blocks[0].up.weight.grad * expected, rtol=1e-5, atol=1e-8)
    engine.destroy()


def test_a_kept_graph_may_be_used_again_and_another_may_not() -> None:
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=4))
    ids, targets = batch(0)
    loss = loss_of(engine(ids), targets)
    engine.backward(loss, retain_graph=True)
    once = gradient(engine).clone()
    engine.step()
    engine.backward(loss)
    torch.testing.assert_close(gradient(engine), 2 * once)
    engine.step()
    with pytest.raises(RuntimeError, match="second time"):
        engine.backward(loss)
    engine.destroy()


def test_backward_takes_a_loss_of_one_element_that_depends_on_a_parameter() -> None:
    engine = engine_of(make(blocks=1))
    ids, _ = batch(0)
    for wrong in (engine(ids), 3.0):
        with pytest.raises(ValueError, match="a loss of one element"):
            engine.backward(wrong)
    with pytest.raises(ValueError, match="depends on no parameter"):
        engine.backward(torch.ones(()))
    train(engine, range(1))  # it goes on
    assert engine.was_step_applied()
    engine.destroy()


def test_boundaries_are_counted_or_set_by_hand() -> None:
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=3))
    ids, targets = batch(0)
    seen = []
    for _ in range(4):
        engine.backward(loss_of(engine(ids), targets))
        seen.append(engine.is_gradient_accumulation_boundary())
        engine.step()
    assert (seen, engine.global_steps) == ([False, False, True, False], 1)
    engine.set_gradient_accumulation_boundary(True)  # before the micro-batch whose step() it is
    assert engine.is_gradient_accumulation_boundary()
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 2
    engine.set_gradient_accumulation_boundary(False)
    for _ in range(5):
        engine.backward(loss_of(engine(ids), targets))
        engine.step()
    assert engine.global_steps == 2
    engine.destroy()


def test_gradients_inside_no_sync_add_to_the_step() -> None:
    reference, engine = (engine_of(make(blocks=1), config(gradient_accumulation_steps=2)) for _ in range(2))
    train(reference, range(1))
    with engine.no_sync():
        ids, targets = batch(0)
        engine.backward(loss_of(engine(ids), targets))
        with pytest.raises(RuntimeError, match="no_sync"):
            engine.step()
    engine.set_gradient_accumulation_boundary(True)
    ids, targets = batch(1)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 1
    mine, theirs = engine.module_state_dict(), reference.module_state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    engine.destroy()
    reference.destroy()


def test_an_emptied_cache_leaves_training_as_it_was() -> None:
    reference, engine = engine_of(make(blocks=1)), engine_of(make(blocks=1))
    expected = train(reference, range(3))
    losses = []
    for step in range(3):
        losses += train(engine, range(step, step + 1))
        engine.empty_partition_cache()
        assert all(parameter.numel() == 0 for parameter in engine.module.parameters())
    assert losses == expected
    engine.destroy()
    reference.destroy()


def test_a_destroyed_engine_gives_the_model_back() -> None:
    model = make(blocks=1)
    before = {name: type(module).forward for name, module in model.named_modules()}
    engine = engine_of(model)
    train(engine, range(1))
    values = engine.module_state_dict()
    engine.destroy()
    engine.destroy()  # nothing is left to end
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert all(type(module).forward is before[name] for name, module in model.named_modules())
    assert all(torch.equal(parameter, values[name]) for name, parameter in model.named_parameters())
    with pytest.raises(ValueError, match="closed|destroyed"):
        engine.module_state_dict()
    other = make(blocks=1)
    other.load_state_dict(values)
    ids, _ = batch(0)
    assert torch.equal(model(ids), other(ids))  # an ordinary model again


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_step_whose_hook_raises_may_be_ended_again(error: type[BaseException]) -> None:
    keys = config(gradient_accumulation_steps=2)
    plain = engine_of(make(blocks=1), keys)
    expected = train(plain, range(3))
    engine = engine_of(make(blocks=1), keys)
    losses = train(engine, range(1))

    def raise_once(*_: Any) -> None:
        hook.remove()
        raise error("not now")

    hook = engine.optimizer.register_step_pre_hook(raise_once)
    for part in range(2):
        ids, targets = batch(100 + part)
        loss = loss_of(engine(ids), targets)
        engine.backward(loss)
        losses.append(loss.item())
        if part == 0:
            engine.step()
    with pytest.raises(error, match="not now"):
        engine.step()
    assert (engine.global_steps, engine.micro_steps, engine.is_gradient_accumulation_boundary()) == (1, 3, True)
    engine.step()
    assert (engine.global_steps, engine.micro_steps, engine.is_gradient_accumulation_boundary()) == (2, 4, False)
    assert losses + train(engine, range(2, 3)) == expected
    assert engine.get_global_grad_norm() == plain.get_global_grad_norm()
    plain.destroy()
    engine.destroy()
