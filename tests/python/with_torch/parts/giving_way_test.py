"""Engines without an optimizer, over models that say what trains, and that an engine with an optimizer takes over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import batch, config, differences, engine_of, loss_of, make, train, train_plain, without_optimizer
from torch import nn
from torch.utils.checkpoint import checkpoint

import sluice


def expected_losses() -> list[float]:
    engine = engine_of(make(blocks=1))
    losses = train(engine, range(3))
    engine.destroy()
    return losses


def by_the_configuration(model: nn.Module) -> sluice.SluiceEngine:
    return engine_of(model)


def by_groups(model: nn.Module) -> sluice.SluiceEngine:
    """As Transformers' Trainer, which makes them of what requires a gradient."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return engine_of(model, model_parameters=[{"params": trained[:3], "weight_decay": 0.01}, {"params": trained[3:], "weight_decay": 0.01}])


def by_an_optimizer(model: nn.Module) -> sluice.SluiceEngine:
    """As Lightning's configure_optimizers()."""
    return engine_of(model, without_optimizer(), optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01))


@pytest.mark.parametrize("start", [by_the_configuration, by_groups, by_an_optimizer])
def test_an_engine_that_only_computes_gives_way_to_one_that_trains(start: Callable[[nn.Module], sluice.SluiceEngine]) -> None:
    """As TRL's precompute_ref_log_probs before train(), and Lightning's test() before fit()."""
    model = make(blocks=1)
    first, second = engine_of(model, without_optimizer()), engine_of(model, without_optimizer())
    for engine in (first, second):
        assert not loss_of(engine(batch(0)[0]), batch(0)[1]).requires_grad
    engine = start(model)
    assert train(engine, range(3)) == expected_losses()
    with pytest.raises(ValueError, match="was destroyed"):
        first(batch(0)[0])
    first.destroy()
    second.destroy()
    train(engine, range(1))
    engine.destroy()


def test_values_that_were_rounded_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = make(blocks=1)
    engine_of(model, without_optimizer(bf16={"enabled": True}))
    engine = engine_of(model)
    assert "rounded to its bfloat16" in [record.getMessage() for record in caplog.records][-1]
    engine.destroy()


def test_an_engine_that_would_leave_the_model_empty_does_not_give_way(tmp_path: Path) -> None:
    model = make(blocks=1)
    engine = engine_of(model, without_optimizer("nvme", tmp_path))
    expected = engine(batch(0)[0])
    with pytest.raises(ValueError, match="cannot give way to one that trains.*Make the engine that trains first"):
        engine_of(model)
    assert torch.equal(engine(batch(0)[0]), expected)
    engine.destroy()


def test_what_trains_is_what_the_script_says_between_passes() -> None:
    model = make(blocks=1)
    model.position.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    engine = engine_of(model, without_optimizer())
    inside: list[bool] = []
    model.norm.register_forward_hook(lambda module, *_: inside.append(module.weight.requires_grad))
    model.blocks.register_forward_pre_hook(lambda *_: None)
    for failing in (False, True):
        if failing:
            model.head.register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                engine(batch(0)[0])
        else:
            engine(batch(0)[0])
        assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert inside == [False, False]
    model.norm.weight.requires_grad_(False)
    engine.destroy()
    assert not model.norm.weight.requires_grad and model.embedding.weight.requires_grad


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False)).sum()


def test_gradients_reach_the_inputs() -> None:
    """As of a reward model: its own parameters have none."""
    found = []
    for is_plain in (True, False):
        model = make(Checkpointed)
        call = model if is_plain else engine_of(model, without_optimizer())
        x = torch.ones(2, 8, requires_grad=True)
        call(x).backward()
        found.append(x.grad)
        if not is_plain:
            assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert torch.equal(*found)


def test_values_are_set_inside_gathered_parameters() -> None:
    model = make(blocks=1)
    engine = engine_of(model, without_optimizer())
    with sluice.zero.GatheredParameters(model.position, modifier_rank=0), torch.no_grad():
        model.position.zero_()
    with pytest.raises(ValueError, match="is for reading"), sluice.zero.GatheredParameters(model.norm.weight), torch.no_grad():
        model.norm.weight.zero_()
    values = engine.module_state_dict()
    assert not values["position"].any()
    engine.destroy()
    assert not model.position.any()


def test_a_module_is_trained_evaluated_and_trained_again() -> None:
    """As Lightning's fit(), test() and fit(), with the engine of each fit() destroyed after it."""
    model, losses = make(blocks=1), []
    for steps in (range(2), range(2, 4)):
        engine = engine_of(model)
        losses += train(engine, steps)
        with pytest.raises(ValueError, match=r"Lightning: trainer.strategy.model.destroy\(\) right after fit\(\); Transformers"):
            engine_of(model)
        engine.destroy()
        evaluated = engine_of(model, without_optimizer())
        losses.append(loss_of(evaluated(batch(9)[0]), batch(9)[1]).item())
    plain = make(blocks=1)
    expected = []
    for steps in (range(2), range(2, 4)):
        expected += train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01), steps)
        expected.append(loss_of(plain(batch(9)[0]), batch(9)[1]).item())
    assert differences(losses, expected) < 1e-6
    evaluated.destroy()


def test_it_gives_way_to_a_loop_of_ones_own() -> None:
    model = make(blocks=1)
    engine_of(model, without_optimizer())
    optimizer = sluice.offload(model, config())
    losses = []
    for step in range(3):
        loss = loss_of(model(batch(step * 100)[0]), batch(step * 100)[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.close()
    assert losses == expected_losses()
