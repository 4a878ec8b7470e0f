"""What a model has when its engine has ended."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, engine_of, loss_of, make, train, train_plain, without_optimizer

import sluice
from sluice import _core


@pytest.mark.parametrize("tier", ["device", "cpu"])
@pytest.mark.parametrize("keys", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
def test_a_model_has_its_masters_again(tier: str, keys: dict[str, Any]) -> None:
    model = make()
    engine = engine_of(model, config(tier, **keys))
    train(engine, range(3))
    masters = {name: sluice.utils.safe_get_full_fp32_param(value) for name, value in model.named_parameters()}
    engine.destroy()
    engine.destroy()
    for name, value in model.named_parameters():
        assert type(value) is torch.nn.Parameter and value.dtype == torch.float32 and value.grad is None
        assert masters[name] is not None and torch.equal(value, masters[name])
    assert model.head.weight is model.embedding.weight
    assert loss_of(model(batch(0)[0]), batch(0)[1]).isfinite()


def test_parameters_with_values_are_ordinary_ones() -> None:
    model = make()
    before = {name: set(vars(value)) for name, value in model.named_parameters()}
    engine_of(model).destroy()
    assert {name: set(vars(value)) for name, value in model.named_parameters()} == before
    model.position = torch.nn.Parameter(torch.zeros(4, 64))
    model.norm.weight.data = torch.ones(64, 2)
    with sluice.zero.GatheredParameters(list(model.parameters())):
        assert model.norm.weight.shape == (64, 2)


def test_weights_that_stay_on_a_drive_keep_their_shape_and_data_type(tmp_path: Path) -> None:
    model = make()
    engine_of(model, config("nvme", tmp_path, bf16={"enabled": True})).destroy()
    assert model.position.ds_shape == (16, 64) and model.position.shape == (0,)
    assert all(value.dtype == torch.float32 for value in model.parameters())


def test_an_engine_ends_outside_of_gathered_parameters() -> None:
    model = make()
    engine = engine_of(model)
    with sluice.zero.GatheredParameters(model.position, modifier_rank=0), torch.no_grad():
        model.position[0] = 7
        with pytest.raises(ValueError, match="inside GatheredParameters, which shows position: leave its context first"):
            engine.destroy()
    engine.destroy()
    assert (model.position[0] == 7).all()


def test_a_second_destroy_leaves_the_next_engine_alone() -> None:
    model = make()
    rest = [value for name, value in model.named_parameters() if name != "position"]
    first = engine_of(model, model_parameters=rest)  # which freezes position
    first.destroy()
    second = engine_of(model, model_parameters=rest)
    first.destroy()
    assert not model.position.requires_grad
    second.destroy()
    assert model.position.requires_grad


def test_an_engine_that_cannot_commit_its_last_step_can_end_again(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path, sluice={"commit_every": 100})
    model = make()
    engine = engine_of(model, keys, resume=True)
    losses = train(engine, range(2))
    obstacle = tmp_path / "manifest.json.tmp"  # as a drive that is full
    obstacle.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="manifest.json.tmp"):
            engine.destroy()
    losses += train(engine, range(2, 3))
    obstacle.rmdir()
    engine.destroy()
    with pytest.raises(ValueError, match="the engine was destroyed"):
        engine.step()
    engine = engine_of(make(), keys, resume=True)
    assert engine.global_steps == 3
    losses += train(engine, range(3, 4))
    engine.destroy()
    reference = engine_of(make(), config())
    assert losses == train(reference, range(4))
    reference.destroy()


def test_what_a_loop_of_ones_own_left_out_trains_again() -> None:
    model = make()
    client = torch.optim.AdamW([value for name, value in model.named_parameters() if name != "position"])
    optimizer = sluice.offload(model, config(), optimizer=client)
    assert not model.position.requires_grad
    optimizer.close()
    assert model.position.requires_grad


def dropped(model: torch.nn.Module, source: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    """Trains by an engine that nothing has when this returns, the masters that it had."""
    engine = engine_of(model, source)
    train(engine, range(2))
    found = {name: sluice.utils.safe_get_full_fp32_param(value) for name, value in model.named_parameters()}
    assert all(value is not None for value in found.values())
    return found  # type: ignore[return-value]


def test_the_model_of_an_engine_that_was_dropped_can_be_read_and_has_another_one(caplog: pytest.LogCaptureFixture) -> None:
    model = make()
    masters = dropped(model, config(bf16={"enabled": True}))
    gc.collect()
    assert torch.equal(model.state_dict()["position"], masters["position"].bfloat16())
    with sluice.zero.GatheredParameters(model.position):
        assert torch.equal(model.position, masters["position"].bfloat16())
    with pytest.raises(RuntimeError, match="norm of parameter position: its values are not here between passes.*state_dict"):
        model.position.norm()
    with torch.no_grad():
        assert model(batch(0)[0]).isfinite().all()
    with caplog.at_level(logging.WARNING, "sluice"):
        engine = engine_of(model)
    assert "dropped without destroy() ends" in caplog.text
    for name, value in model.named_parameters():
        found = sluice.utils.safe_get_full_fp32_param(value)
        assert found is not None and torch.equal(found, masters[name])
    train(engine, range(1))


def test_the_model_of_an_optimizer_that_was_dropped_has_an_engine() -> None:
    model = make()
    sluice.offload(model, config())
    train(engine_of(model), range(1))


def test_an_engine_that_was_dropped_with_its_weights_on_a_drive_keeps_them(tmp_path: Path) -> None:
    model = make()
    masters = dropped(model, config("nvme", tmp_path))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"dropped without destroy\(\), which could not.*values are on a drive.*state_dict"):
            engine_of(model)
    assert all(torch.equal(value, masters[name]) for name, value in model.state_dict().items() if name in masters)
    assert all(value.requires_grad for value in model.parameters())


def test_an_engine_whose_optimizer_is_used_was_not_dropped() -> None:
    model = make()
    optimizer = engine_of(model).optimizer
    with pytest.raises(ValueError, match="belongs to another engine.*lives on while its optimizer"):
        engine_of(model)
    assert optimizer.param_groups


def test_an_engine_that_was_dropped_goes_with_its_model() -> None:
    model = make()
    dropped(model)
    parameter, gone = model.position, weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(RuntimeError, match="was destroyed, or went with its model"):
        parameter.norm()


def test_states_on_a_drive_leave_the_weights_too(tmp_path: Path) -> None:
    model, other = make(), make()
    source = config("cpu")
    source["zero_optimization"]["offload_optimizer"] = {"device": "nvme", "nvme_path": str(tmp_path)}
    for each, its_config in ((model, source), (other, config("cpu"))):
        engine = engine_of(each, its_config)
        train(engine, range(2))
        engine.destroy()
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_another_engine_trains_the_model_on() -> None:
    plain = make()
    expected = []
    for _ in range(2):  # an optimizer of its own each time
        expected += train_plain(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01), range(3))
    model = make()
    mine = []
    for _ in range(2):
        engine = engine_of(model)
        mine += train(engine, range(3))
        engine.destroy()
    assert mine == pytest.approx(expected, rel=1e-6)


def test_an_engine_that_only_computed_leaves_a_model_that_trains() -> None:
    model = make()
    model.norm.requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    source = without_optimizer()
    engine = engine_of(model, source)
    engine(batch(0)[0])
    engine.destroy()
    trains = {name: value.requires_grad for name, value in model.named_parameters()}
    assert not any(trains.pop(name) for name in ("norm.weight", "norm.bias")) and all(trains.values())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    train(engine_of(model), range(1))


def test_an_engine_may_end_after_an_error_in_a_pass() -> None:
    model = make()
    engine = engine_of(model)
    train(engine, range(1))
    with pytest.raises(IndexError):
        engine(torch.tensor([[10_000]]))
    loss_of(engine(batch(1)[0]), batch(1)[1]).backward()  # and inside a step
    master = sluice.utils.safe_get_full_fp32_param(model.position)
    engine.destroy()
    assert master is not None and torch.equal(model.position, master)
    train(engine_of(model), range(1))


def test_a_loop_of_ones_own_leaves_the_values_too() -> None:
    model = make()
    optimizer = sluice.offload(model, config())
    loss_of(model(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()
    values = model.state_dict()
    optimizer.close()
    assert all(torch.equal(value, values[name]) for name, value in model.named_parameters())


def test_weights_on_a_drive_stay_there(tmp_path: Path) -> None:
    model = make()
    engine_of(model, config("nvme", tmp_path)).destroy()
    assert model.position.numel() == 0
    with pytest.raises(RuntimeError, match="norm of parameter .*: it has no values any more"):
        model.position.norm()


def test_a_memory_without_room_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    model = make()
    engine = engine_of(model)
    monkeypatch.setattr(_core, "available_memory_bytes", lambda: 1000)
    with caplog.at_level(logging.INFO, "sluice"):
        engine.destroy()
    assert "the model stays empty: its values take 419 KiB" in caplog.text and "1000 B of memory are free" in caplog.text
    assert model.position.numel() == 0


def test_the_end_of_an_engine_asks_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: Any) -> Any:
        raise ValueError("the NVIDIA driver is there, and the CUDA runtime fails")

    model = make()
    engine = engine_of(model)
    monkeypatch.setattr(_core, "probe_machine", fail)
    engine.destroy()
    assert model.position.numel() > 0


@pytest.mark.parametrize("trains", [True, False])
def test_requires_grad_that_changed_since_costs_no_value(trains: bool) -> None:
    model = make()
    model.norm.requires_grad_(False)
    engine = engine_of(model, config(bf16={"enabled": True}))
    train(engine, range(2))
    master = sluice.utils.safe_get_full_fp32_param(model.position)
    model.requires_grad_(trains)
    engine.destroy()
    assert master is not None and torch.equal(model.position, master) and model.norm.weight.numel() > 0


def test_steps_after_the_end_say_only_that(caplog: pytest.LogCaptureFixture) -> None:
    model = make(blocks=1)
    client = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = engine_of(model, optimizer=client)
    train(engine, range(1))
    engine.destroy()
    with pytest.raises(ValueError, match="the engine was destroyed"):
        engine.step()
    assert "has no backward before it" not in caplog.text
    del engine
    client.zero_grad()
    with pytest.raises(ValueError, match="the engine was destroyed"):
        client.step()
