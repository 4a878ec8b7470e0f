"""Engines without an optimizer: what they freeze, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train, without_optimizer

import sluice


class Wrapped(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model


def test_a_refused_second_engine_leaves_the_first_ones_parameters_training() -> None:
    model = make(blocks=1)
    engine = engine_of(model)
    with pytest.raises(ValueError, match="belongs to another engine.*To evaluate, call that engine"):
        engine_of(Wrapped(model), without_optimizer())
    with pytest.raises(ValueError, match="belongs to another engine.*end it by destroy"):
        engine_of(model)
    losses = train(engine, range(2))
    assert losses[0] != losses[1]
    assert all(parameter.requires_grad for parameter in model.parameters())
    engine.destroy()


def test_an_engine_without_an_optimizer_computes_over_the_one_that_trains(tmp_path: Path) -> None:
    """As Lightning's test() after fit(). Bits of the training do not change, also within a step."""
    keys = {"gradient_accumulation_steps": 2, "scheduler": {"type": "WarmupLR", "params": {}}}
    alone = engine_of(make(blocks=1), config(**keys))
    expected = train(alone, range(4))
    alone.destroy()

    model = make(blocks=1)
    engine = engine_of(model, config(**keys))
    losses = train(engine, range(2))
    ids, targets = batch(200)
    loss = loss_of(engine(ids), targets)
    engine.backward(loss)
    engine.step()
    for module in model.modules():  # as Lightning does
        for hooks in (module._forward_hooks, module._forward_pre_hooks, module._state_dict_hooks):
            hooks.clear()
    guest, optimizer, _, scheduler = sluice.initialize(model=model, model_parameters=[], config=without_optimizer(**keys))
    with torch.no_grad():
        assert torch.equal(guest(ids), engine(ids))
    assert scheduler is None and guest.global_steps == 2 and guest.get_lr()
    assert guest.module_state_dict()["position"].shape == model.position.ds_shape
    refused: list[Callable[[], Any]] = [
        lambda: guest.backward(loss_of(guest(ids), targets)),
        guest.step,
        optimizer.step,
        lambda: guest.train_batch(iter([batch(0)]), loss_of, by_layer=True),
        lambda: guest.save_checkpoint(tmp_path),
    ]
    for call in refused:
        with pytest.raises(ValueError, match="of the engine that the model had before"):
            call()
    guest.zero_grad()
    optimizer.zero_grad()
    guest.destroy()
    second = loss_of(engine(batch(201)[0]), batch(201)[1])
    engine.backward(second)
    engine.step()
    assert [*losses, loss.item(), second.item(), *train(engine, range(3, 4))] == expected
    engine.destroy()
    with pytest.raises(ValueError, match="was destroyed"):
        guest(ids)


def test_such_an_engine_takes_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    """As Lightning's test(ckpt_path="best") after fit(): the states are those of the run."""
    engine = engine_of(make(blocks=1))
    train(engine, range(2))
    engine.save_checkpoint(tmp_path)
    expected = engine.module_state_dict()
    train(engine, range(2, 4))
    moment = sluice.utils.safe_get_full_optimizer_state(engine.module.position, "exp_avg")
    guest = engine_of(engine.module, without_optimizer())
    guest.load_checkpoint(tmp_path)
    found = guest.module_state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert torch.equal(sluice.utils.safe_get_full_optimizer_state(engine.module.position, "exp_avg"), moment)
    assert (guest.global_steps, engine.global_steps) == (2, 4)
    engine.destroy()


def test_such_an_engine_has_the_micro_batch_of_its_own_configuration(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make(blocks=1), config(gradient_clipping=1.0))
    keys = {"gradient_accumulation_steps": 3, "zero_optimization": {"stage": 1}, "dataloader_drop_last": True}
    data = torch.utils.data.TensorDataset(torch.arange(9))
    guest, _, loader, _ = sluice.initialize(
        model=engine.module, config=without_optimizer(train_micro_batch_size_per_gpu=4, **keys), training_data=data
    )
    assert guest.get_batch_info() == (12, 4, 3) and engine.get_batch_info() == (2, 2, 1)
    assert [len(rows) for (rows,) in loader] == [4, 4]
    assert (guest.zero_optimization_stage(), guest.gradient_clipping()) == (1, 0.0)
    engine.set_train_batch_size(8)
    assert (guest.train_batch_size(), engine.train_batch_size()) == (12, 8)
    assert not caplog.records
    other = engine_of(engine.module, without_optimizer(bf16={"enabled": True}))
    assert other.get_data_types()[0] == torch.float32
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("the configuration asks for bfloat16, and the model has an engine that computes in float32")
    engine.destroy()


def test_a_broken_configuration_of_such_an_engine_is_an_error() -> None:
    engine = engine_of(make(blocks=1))
    for keys, message in (({"sluice": {"durabilty": 3}}, "sluice.durabilty"), ({"zero_optimization": {"stage": 7}}, "zero_optimization.stage")):
        with pytest.raises(sluice.config.ConfigError, match=f"config: {message}"):
            engine_of(engine.module, without_optimizer(**keys))
    with pytest.raises(FileNotFoundError):
        sluice.initialize(model=engine.module, config="absent.json")
    with pytest.raises(ValueError, match="was loaded for 8 ranks"):
        sluice.initialize(model=engine.module, config=sluice.config.load(without_optimizer(), world_size=8))
    assert train(engine, range(1))
    engine.destroy()


def test_a_second_engine_without_an_optimizer_computes_too() -> None:
    model = make(blocks=1)
    first, second = engine_of(model, without_optimizer()), engine_of(model, without_optimizer())
    with torch.no_grad():
        assert torch.equal(first(batch(0)[0]), second(batch(0)[0]))
    with pytest.raises(ValueError, match="units and resume"):
        engine_of(model, without_optimizer(), units=["Block"])
    with pytest.raises(ValueError, match="no torch Dataset"):
        engine_of(model, without_optimizer(), training_data=3)
    with torch.no_grad():
        second(batch(0)[0])
    first.destroy()


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
    assert scheduler is None and not engine(batch(0)[0]).requires_grad
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
