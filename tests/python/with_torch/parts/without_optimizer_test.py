"""Engines without an optimizer: what they freeze, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train

import sluice


def without_optimizer(**keys: Any) -> dict[str, Any]:
    made = config(**keys)
    del made["optimizer"]
    return made


def test_a_refused_second_engine_leaves_the_first_ones_parameters_training() -> None:
    model = make(blocks=1)
    engine = engine_of(model)
    with pytest.raises(ValueError, match="belongs to another engine"):
        engine_of(model, without_optimizer())
    losses = train(engine, range(2))
    assert losses[0] != losses[1]
    assert all(parameter.requires_grad for parameter in model.parameters())
    engine.destroy()


@pytest.mark.parametrize("fault", ["units", "training_data"])
def test_after_a_failed_initialize_what_trained_trains_again(fault: str) -> None:
    """A wrong choice of units fails before the weights are moved, and wrong data after it."""
    model = make(blocks=1)
    model.position.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with pytest.raises((TypeError, ValueError)):
        engine_of(model, without_optimizer(), **({"units": ["NoSuchModule"]} if fault == "units" else {"training_data": 3}))
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    engine = engine_of(model)
    assert train(engine, range(1))
    engine.destroy()


def test_an_engine_without_an_optimizer_computes_and_refuses_a_checkpoint(tmp_path: Path) -> None:
    expected = make(blocks=1)(batch(0)[0])
    engine = engine_of(make(blocks=1), without_optimizer())
    with torch.no_grad():
        assert torch.equal(engine(batch(0)[0]), expected)
    with pytest.raises(ValueError, match="no parameter of this model trains.*save_16bit_model"):
        engine.save_checkpoint(tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints").exists()
    assert engine.save_16bit_model(tmp_path)
    engine.destroy()


@pytest.mark.parametrize("given", [list, lambda _: []], ids=["all", "none"])
def test_parameters_without_an_optimizer_train_nothing(given: Callable[[Any], list[Any]]) -> None:
    """Fabric passes all parameters of a model without an optimizer, and Lightning passes none."""
    keys = without_optimizer()
    alone = engine_of(make(blocks=1), keys)
    planned = alone.report()["plan"]["planned_bytes"]
    alone.destroy()
    model = make(blocks=1)
    engine, _, _, scheduler = sluice.initialize(model=model, model_parameters=given(model.parameters()), config=keys)
    assert engine.report()["plan"]["planned_bytes"] == planned
    assert scheduler is None and not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(ValueError, match="given no optimizer"):
        engine.backward(loss_of(engine(batch(0)[0]), batch(0)[1]))
    engine.destroy()


def test_a_function_that_makes_an_optimizer_has_the_parameters_that_are_given() -> None:
    model = make(blocks=1)
    engine, optimizer, _, _ = sluice.initialize(
        model=model,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3),
        model_parameters=[{"params": list(model.parameters()), "lr": 2e-3}],
        config=without_optimizer(),
    )
    assert [group["lr"] for group in optimizer.param_groups] == [2e-3]
    engine.destroy()


def test_a_frozen_model_of_offload_refuses_a_checkpoint(tmp_path: Path) -> None:
    optimizer = sluice.offload(make(blocks=1).requires_grad_(False), without_optimizer())
    with pytest.raises(ValueError, match="no parameter of this model trains"):
        optimizer.save_checkpoint(tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints").exists()
    optimizer.close()
