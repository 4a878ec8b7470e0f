"""Engines that are dropped, that cannot be made, and passes that fail."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Tied, batch, config, differences, engine_of, loss_of, make, train

import sluice
from sluice import zero


def test_an_engine_that_is_dropped_has_its_last_step_committed(tmp_path: Path) -> None:
    engine = engine_of(make(), config("nvme", tmp_path), resume=True)
    train(engine, range(3))
    del engine
    gc.collect()
    engine = engine_of(make(), config("nvme", tmp_path), resume=True)
    assert engine.global_steps == 3
    engine.destroy()


def test_a_destroyed_engine_is_gone_with_its_last_user() -> None:
    engine = engine_of(make())
    train(engine, range(1))
    gone = weakref.ref(engine)
    gc.disable()
    try:
        engine.destroy()
        del engine
        assert gone() is None
    finally:
        gc.enable()


def assert_untouched(model: torch.nn.Module) -> None:
    expected = make()
    for name, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    ids, _ = batch(0)
    assert torch.equal(model(ids), expected(ids))


def no_scheduler(optimizer: Any) -> Any:
    raise ZeroDivisionError


FAILING = [
    ({"lr_scheduler": no_scheduler}, ZeroDivisionError),
    ({"training_data": 3}, ValueError),
]


@pytest.mark.parametrize(("arguments", "error"), FAILING)
@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_a_model_without_an_engine_has_its_values(
    arguments: dict[str, Any], error: type[Exception], tier: str, tmp_path: Path
) -> None:
    model, keys = make(), config(tier, tmp_path, bf16={"enabled": True})
    with pytest.raises(error):
        engine_of(model, keys, resume=False, **arguments)
    assert_untouched(model)
    engine = engine_of(model, keys, resume=False)
    reference = engine_of(make(), config(bf16={"enabled": True}))
    assert train(engine, range(2)) == train(reference, range(2))
    engine.destroy()
    reference.destroy()


def test_a_model_in_files_has_its_values_in_files(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path)
    with zero.Init(config_dict_or_path=keys):
        model = make()
    with pytest.raises(ZeroDivisionError):
        engine_of(model, keys, lr_scheduler=no_scheduler)
    assert_untouched(model)
    assert model.norm.weight.untyped_storage().data_ptr() % 4096 == 0  # of a mapped file


def test_a_precision_without_its_loss_scale_is_refused_before_anything_moves() -> None:
    model = make()
    with pytest.raises(ValueError, match="loss scale"):
        sluice.offload(model, config(fp16={"enabled": True}))
    assert_untouched(model)


def test_a_model_that_did_not_fit_can_be_tried_again_at_once() -> None:
    model = make()
    try:
        engine_of(model, config(sluice={"device": "host", "host_bytes": "1KiB"}))
    except sluice.DoesNotFit:
        engine = engine_of(model)
    engine.destroy()


def test_a_model_of_an_engine_that_has_ended_is_named(tmp_path: Path) -> None:
    model = make()
    engine_of(model, config("nvme", tmp_path)).destroy()
    with pytest.raises(ValueError, match=r"parameter position is empty: it belonged to an engine that has ended"):
        engine_of(model)


def fail(*_: Any) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("by_engine", [True, False])
def test_a_step_whose_backward_failed_has_all_its_micro_batches(by_engine: bool) -> None:
    keys = config(gradient_accumulation_steps=2)
    reference = engine_of(make(), keys)
    expected = train(reference, range(3))
    reference.destroy()
    engine = engine_of(make(), keys)
    losses = train(engine, range(1))
    ids, targets = batch(100)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()  # the first micro-batch of a step
    logits = engine(ids)
    logits.register_hook(fail)
    loss = loss_of(logits, targets)
    with pytest.raises(ZeroDivisionError):
        engine.backward(loss) if by_engine else loss.backward()
    losses += train(engine, range(1, 3))
    assert losses == expected
    assert engine.global_steps == 3
    engine.destroy()


@pytest.mark.parametrize("scale_wrt_gas", [True, False])
def test_a_loss_that_is_none_is_named(scale_wrt_gas: bool) -> None:
    engine = engine_of(make())
    with pytest.raises(ValueError, match="a loss of one element"):
        engine.backward(None, scale_wrt_gas=scale_wrt_gas)  # type: ignore[arg-type]
    engine.destroy()


@pytest.mark.parametrize("function", ["torch.Tensor.clone", "sluice.zero.ranks.share"])
def test_gathered_parameters_that_fail_leave_their_units(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(make())
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(function, fail)
        with zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
            pass
    assert len(train(engine, range(2))) == 2
    engine.destroy()


def test_gathered_parameters_that_stay_open_are_named() -> None:
    engine = engine_of(make())
    shown = zero.GatheredParameters(engine.module.norm.bias)
    shown.__enter__()
    with pytest.raises(ValueError, match=r"inside GatheredParameters, which shows norm\.bias"):
        train(engine, range(1))
    shown.__exit__()
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_of_a_model_under_an_engine_are_refused(copied: Any) -> None:
    engine = engine_of(make())
    with pytest.raises(TypeError, match="a model under an engine cannot be copied or pickled"):
        copied(engine.module)
    engine.destroy()
    copied(engine.module)


def marks_of(model: torch.nn.Module) -> list[tuple[str, set[str]]]:
    """Attributes of modules and parameters, by their places."""
    named = [*model.named_modules(), *model.named_parameters()]
    return [(name, set(vars(each))) for name, each in named]


@pytest.mark.parametrize("end", ["destroyed", "does not fit", "no scheduler"])
def test_a_model_keeps_no_marks_of_an_engine(end: str) -> None:
    model = make()
    before = marks_of(model)
    if end == "destroyed":
        engine = engine_of(model)
        train(engine, range(1))
        engine.destroy()
    elif end == "does not fit":
        with pytest.raises(sluice.DoesNotFit):
            engine_of(model, config(sluice={"device": "host", "host_bytes": "1KiB"}))
    else:
        with pytest.raises(ZeroDivisionError):
            engine_of(model, lr_scheduler=no_scheduler)
    assert marks_of(model) == before
