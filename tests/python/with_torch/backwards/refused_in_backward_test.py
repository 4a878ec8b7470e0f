"""What a loop that updates in backward refuses, and how a step ends that has failed after its first update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from early_updates_test import IN_PLACE, assert_equal, states
from optimizer_in_backward_test import Recomputed, source, trained
from small_models import Fails, Tied, batch, engine_of, loss_of, make, train
from torch import nn

import sluice

MIXED = "mix of two steps"


def test_values_that_change_between_backward_and_step_are_an_error_that_can_be_mended() -> None:
    engine = trained(source())
    before = engine.get_lr()[0]
    engine.set_lr(0.5 * before)
    with pytest.raises(ValueError, match="step the scheduler after the optimizer"):
        engine.step()
    engine.set_lr(before)
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def plain_model() -> nn.Module:
    return make(Tied)


def set_master(weight: Any) -> None:
    sluice.utils.safe_set_full_fp32_param(weight, torch.zeros(weight.ds_shape))


def clamp(weight: Any) -> None:
    with sluice.zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.clamp_(-0.01, 0.01)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda engine, folder: engine.zero_grad(), "cannot be dropped"),
        (lambda engine, folder: engine.module.blocks[0].zero_grad(), "is gone"),
        (lambda engine, folder: engine.save_checkpoint(folder), "a checkpoint comes after step"),
        (lambda engine, folder: sluice.utils.safe_get_full_grad(engine.module.blocks[0].down.weight), "is gone"),
        (lambda engine, folder: engine.backward(loss_of(engine(batch(1)[0]), batch(1)[1])), "call step\\(\\) first.*GradCache"),
        (lambda engine, folder: engine.backward(loss_of(engine(batch(1)[0]), batch(1)[1]) * torch.inf), "call step\\(\\) first"),
        (lambda engine, folder: loss_of(engine(batch(1)[0]), batch(1)[1]).backward(), "call step\\(\\) first"),
        (lambda engine, folder: set_master(engine.module.blocks[0].down.weight), "that is set comes after step"),
        (lambda engine, folder: clamp(engine.module.blocks[0].down.weight), "that is set comes after step"),
        (lambda engine, folder: engine.destroy(), "in the middle of a step"),
    ],
    ids=["zero_grad", "zero_grad_of_a_part", "save", "gradient", "backward", "infinite", "own_backward", "master", "gathered", "destroy"],
)
def test_between_backward_and_step(call: Any, words: str, tmp_path: Path) -> None:
    """The error changes nothing."""
    engine = trained(source())
    with pytest.raises(ValueError, match=words):
        call(engine, tmp_path)
    engine.step()
    assert engine._last.loss == pytest.approx(loss_of(plain_model()(batch(0)[0]), batch(0)[1]).item(), rel=1e-4)
    ids, targets = batch(1)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    found = states(engine.module)
    engine.destroy()
    plain = trained(source(in_backward=False))
    plain.step()
    plain.backward(loss_of(plain(ids), targets))
    plain.step()
    assert_equal(found, states(plain.module))
    plain.destroy()


@pytest.mark.parametrize("is_stepped", [False, True])
def test_after_an_update_that_has_failed_every_call_says_so(is_stepped: bool, tmp_path: Path) -> None:
    engine = engine_of(make(Tied), source(bf16={"enabled": True}))
    for group in engine.optimizer.param_groups:
        group.update(lr=1e38, weight_decay=1.0)
    ids, targets = batch(0)
    engine.backward(loss_of(engine(ids), targets))  # the embedding, which is updated last, has weights above 3.4
    weight = engine.module.blocks[0].down.weight
    calls: list[Any] = [engine.step] if is_stepped else []
    calls += [lambda: engine.save_checkpoint(tmp_path), lambda: set_master(weight), engine.module_state_dict, engine.step, engine.destroy]
    for call in calls:
        with pytest.raises(RuntimeError, match="gave a non-finite value from finite gradients"):
            call()
    engine_of(make(Tied)).destroy()  # it has ended all the same


def test_a_refused_backward_takes_no_micro_batch() -> None:
    """The step of three ends with its own step(), though a fourth backward was refused."""
    engine = engine_of(make(Tied), source(gradient_accumulation_steps=3))
    for part in range(3):
        ids, targets = batch(part)
        engine.backward(loss_of(engine(ids), targets))
        if part == 2:
            with pytest.raises(ValueError, match="call step\\(\\) first"):
                engine.backward(loss_of(engine(ids), targets))
        engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def test_a_backward_inside_gathered_parameters_is_refused() -> None:
    engine = engine_of(make(Tied), source())
    weight = engine.module.blocks[0].down.weight
    before = states(engine.module)
    ids, targets = batch(0)
    with sluice.zero.GatheredParameters(weight, modifier_rank=0), pytest.raises(ValueError, match="not inside GatheredParameters"):
        engine.backward(loss_of(engine(ids), targets))
    assert_equal(states(engine.module), before)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


@pytest.mark.parametrize("happens", ["between", "fails"])
def test_the_end_of_training_in_the_middle_of_a_step_writes_no_checkpoint(happens: str, tmp_path: Path) -> None:
    keys = {**IN_PLACE, "checkpoint_dir": str(tmp_path), "checkpoint_every": 5}
    engine = trained(source(keys=keys), FailsOnce)
    engine.step()
    ids, targets = batch(1)
    if happens == "fails":
        engine.module.fails = True
        with pytest.raises(RuntimeError, match="on purpose"):
            loss_of(engine.module(ids), targets).backward()
    else:
        engine.backward(loss_of(engine(ids), targets))
    with pytest.raises((RuntimeError, ValueError), match=f"{MIXED}|the end of training comes after step"):
        engine.loop.finish()  # as the end of the script
    assert checkpoints(tmp_path) == []
    if happens == "between":
        engine.step()
        engine.destroy()
        assert checkpoints(tmp_path) == ["step-00000002"]


def test_no_sync_needs_the_number_of_micro_batches() -> None:
    engine = engine_of(make(Tied), source())
    before = states(engine.module)
    ids, targets = batch(0)
    with engine.no_sync(), pytest.raises(ValueError, match="gradient_accumulation_steps 1 has no room"):
        engine.backward(loss_of(engine(ids), targets))
    assert_equal(states(engine.module), before)
    engine.destroy()


def test_a_graph_has_one_backward() -> None:
    engine = engine_of(make(Tied), source())
    ids, targets = batch(0)
    loss = loss_of(engine(ids), targets)
    engine.backward(loss, retain_graph=True)
    with pytest.raises(ValueError, match="call step\\(\\) first"):
        engine.backward(loss)
    engine.step()
    engine.destroy()


def test_a_reentrant_checkpoint_that_is_used_twice() -> None:
    engine = engine_of(make(lambda: Recomputed(use_reentrant=True)), source())
    ids, targets = batch(0)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        engine.backward(loss_of(engine(ids), targets))
    with pytest.raises(RuntimeError, match=MIXED):
        engine(ids)
    engine.destroy()


class FailsOnce(Tied):
    fails = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for index, block in enumerate(self.blocks):
            x = Fails.apply(block(x)) if self.fails and index == 0 else block(x)
        return self.head(x)


def test_a_backward_that_fails_half_way_leaves_a_mix_until_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    engine = trained(source(), FailsOnce)
    engine.step()
    engine.save_checkpoint(tmp_path / "ck")
    expected = states(engine.module)
    ids, targets = batch(1)
    engine.module.fails = True
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.backward(loss_of(engine(ids), targets))
    engine.module.fails = False
    for call in (lambda: engine(ids), lambda: engine.save_checkpoint(tmp_path / "other"), engine.step):
        with pytest.raises(RuntimeError, match=MIXED):
            call()
    engine.load_checkpoint(tmp_path / "ck")
    assert_equal(states(engine.module), expected)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 2
    engine.destroy()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("what", ["loss", "first gradient"])
def test_a_step_that_is_not_finite_before_its_first_update_is_skipped(what: str, parts: int) -> None:
    engine = engine_of(make(Tied), source(gradient_accumulation_steps=parts))
    before = states(engine.module)
    for _ in range(parts):
        ids, targets = batch(0)
        loss = loss_of(engine(ids), targets)
        if what == "loss":
            loss = loss * torch.inf
        else:
            loss.register_hook(lambda gradient: gradient * torch.nan)
        engine.backward(loss)
        engine.step()
    assert engine.skipped_steps == 1
    assert_equal(states(engine.module), before)
    train(engine, range(1))
    assert engine.skipped_steps == 1
    engine.destroy()


def test_a_gradient_that_is_not_finite_after_an_update_ends_the_training() -> None:
    engine = engine_of(make(Tied), source())
    ids, targets = batch(0)
    engine.module.blocks[0].register_full_backward_hook(lambda module, inputs, outputs: None)
    handle = engine.module.blocks[0].down.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(RuntimeError, match=r"blocks\.0.* is not finite. With optimizer_in_backward.*leave that key out"):
        engine.backward(loss_of(engine(ids), targets))  # goes to its end, as on all ranks
        engine.step()
    handle.remove()
    with pytest.raises(RuntimeError, match=MIXED):
        engine(ids)
    engine.destroy()


def test_a_boundary_by_hand_needs_the_number_of_micro_batches() -> None:
    engine = engine_of(make(Tied), source())
    ids, targets = batch(0)
    engine.set_gradient_accumulation_boundary(False)
    with pytest.raises(ValueError, match="gradient_accumulation_steps 1 has no room"):
        engine.backward(loss_of(engine(ids), targets))
    engine.set_gradient_accumulation_boundary(True)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


@pytest.mark.parametrize(
    ("more", "words"),
    [({"gradient_clipping": 1.0}, "gradient_clipping needs the norm"), ({"fp16": {"enabled": True}}, "use bf16")],
    ids=["clipping", "fp16"],
)
def test_settings_that_need_all_gradients(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        engine_of(make(Tied), source(**more))


@pytest.mark.parametrize("how", ["grad", "inputs", "frozen"])
def test_a_backward_without_gradients_of_parameters_updates_nothing(how: str) -> None:
    engine = engine_of(make(Tied), source())
    before = states(engine.module)
    x = engine.module.embedding(batch(0)[0]).detach().requires_grad_()
    if how == "frozen":
        engine.module.requires_grad_(False)
    y = x
    for block in engine.module.blocks:
        y = block(y)
    loss = y.square().mean()
    if how == "grad":
        torch.autograd.grad(loss, x)
    else:
        loss.backward(inputs=[x] if how == "inputs" else None)
        assert x.grad is not None
    engine.module.requires_grad_(True)
    assert_equal(states(engine.module), before)
    ids, targets = batch(0)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    found = states(engine.module)
    engine.destroy()
    plain = trained(source(in_backward=False))
    plain.step()
    assert_equal(found, states(plain.module))
    plain.destroy()


def test_the_log_says_which_failures_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    engine = trained(source(), FailsOnce)
    ids, targets = batch(1)
    with pytest.raises(ValueError, match="call step\\(\\) first"):
        loss_of(engine(ids), targets).backward()
    assert "dropped" not in caplog.text  # nothing was
    engine.step()
    engine.module.fails = True
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.backward(loss_of(engine(ids), targets))
    assert "weights and states are a mix of two steps, until a checkpoint is loaded" in caplog.text
    engine.destroy()
