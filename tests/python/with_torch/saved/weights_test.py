"""Weights of a checkpoint without their states: in an engine that trains, in one that computes, and in several ranks."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_test import run
from small_models import batch, config, engine_of, equal, make, train, without_optimizer
from torch import nn

import sluice
from sluice import utils
from sluice._training.saved import weights

WARMUP = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}
BF16: dict[str, Any] = {"bf16": {"enabled": True}}


def masters_of(engine: sluice.SluiceEngine) -> dict[str, torch.Tensor]:
    return {name: utils.safe_get_full_fp32_param(parameter) for name, parameter in engine.module.named_parameters()}


def moments_of(engine: sluice.SluiceEngine) -> list[torch.Tensor]:
    return [utils.safe_get_full_optimizer_state(parameter, "exp_avg") for parameter in engine.module.parameters()]


def saved(folder: Path, steps: int = 3, model: nn.Module | None = None, **keys: Any) -> dict[str, torch.Tensor]:
    """Saves a checkpoint after some steps. Returns the masters."""
    engine = engine_of(make(blocks=1) if model is None else model, config(**keys))
    train(engine, range(steps))
    engine.save_checkpoint(folder, client_state={"epoch": 7})
    expected = masters_of(engine)
    engine.destroy()
    return expected


def another() -> nn.Module:
    """With other values than make()."""
    torch.manual_seed(1)
    return type(make())(blocks=1)


@pytest.mark.parametrize("tier", ["cpu", "nvme", "device"])
def test_weights_alone_begin_a_run_of_their_own(tier: str, tmp_path: Path) -> None:
    """Masters have the saved bits, also in bf16. States, counters and schedule are those of the new engine."""
    (tmp_path / "drive").mkdir()
    expected = saved(tmp_path / "saved", scheduler=WARMUP, **BF16)
    engine = engine_of(another(), config(tier, tmp_path / "drive", scheduler=WARMUP, **BF16))
    rates = engine.get_lr()
    folder, state = engine.load_checkpoint(tmp_path / "saved", load_module_only=True)
    assert (folder, state) == (str(tmp_path / "saved" / "global_step3"), {"epoch": 7})
    assert equal(masters_of(engine), expected)
    assert not any(moment.any() for moment in moments_of(engine))
    assert (engine.global_steps, engine.global_samples, engine.get_lr()) == (0, 0, rates)
    mine = train(engine, range(3, 5))
    engine.destroy()
    model = another()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(expected[name])
    engine = engine_of(model, config(scheduler=WARMUP, **BF16))
    assert train(engine, range(3, 5)) == mine
    engine.destroy()
    assert not [name for name in os.listdir(tmp_path / "saved" / "global_step3") if name.startswith(".weights")]


def test_without_states_counters_and_the_schedule_go_on(tmp_path: Path) -> None:
    """As in DeepSpeed: global_steps and rates are the checkpoint's, and Adam begins."""
    expected = saved(tmp_path, scheduler=WARMUP)
    engine = engine_of(another(), config(scheduler=WARMUP))
    engine.load_checkpoint(tmp_path, load_optimizer_states=False)
    assert equal(masters_of(engine), expected)
    assert not any(moment.any() for moment in moments_of(engine))
    loaded = (engine.global_steps, engine.global_samples, engine.lr_scheduler.last_batch_iteration)
    train(engine, range(3, 5))
    assert loaded == (3, 6, 2) and (engine.global_steps, engine.loop.step, engine.loop.updates) == (5, 2, 2)
    assert engine.save_checkpoint(tmp_path) and (tmp_path / "latest").read_text() == "global_step5"
    losses = train(engine, range(5, 7))
    engine.destroy()

    engine = engine_of(another(), config(scheduler=WARMUP))
    engine.load_checkpoint(tmp_path)
    assert (engine.global_steps, engine.loop.step) == (5, 2)
    assert train(engine, range(5, 7)) == losses and engine.global_steps == 7
    engine.load_checkpoint(tmp_path, load_optimizer_states=False, load_lr_scheduler_states=False)
    assert (engine.global_steps, engine.loop.step, engine.lr_scheduler.last_batch_iteration) == (5, 4, 6)
    engine.destroy()


def test_gradients_of_other_weights_are_dropped(tmp_path: Path) -> None:
    saved(tmp_path)
    engine = engine_of(another(), config(gradient_accumulation_steps=2))
    engine.backward(engine(batch(0)[0]).square().mean())
    engine.step()
    engine.load_checkpoint(tmp_path, load_module_only=True)
    assert engine.loop.micro_batches.counted == 0 and utils.safe_get_full_grad(engine.module.position) is None
    assert train(engine, range(1))
    engine.destroy()


@pytest.mark.parametrize("arguments", [{}, {"load_module_only": True}, {"load_optimizer_states": False}], ids=str)
@pytest.mark.parametrize("keys", [{}, BF16], ids=["fp32", "bf16"])
def test_an_engine_without_an_optimizer_takes_weights(keys: dict[str, Any], arguments: dict[str, Any], tmp_path: Path) -> None:
    expected = saved(tmp_path, **keys)
    engine = engine_of(another(), without_optimizer(**keys))
    folder, state = engine.load_checkpoint(tmp_path, **arguments)
    assert folder is not None and state == {"epoch": 7}
    assert engine.global_steps == (0 if "load_module_only" in arguments else 3)
    found = engine.module_state_dict()
    assert all(torch.equal(found[name], value.to(found[name].dtype)) for name, value in expected.items())
    assert torch.equal(found["head.weight"], found["embedding.weight"])
    engine.destroy()


def test_a_model_that_trains_other_parameters_takes_weights(tmp_path: Path) -> None:
    """Before: the engine of a part of the model said that it was another model, and gave no way out."""
    expected = saved(tmp_path)
    model = another()
    model.blocks.requires_grad_(False)
    engine = engine_of(model)
    with pytest.raises(sluice.StorageError, match="it trained parameter blocks.*load_module_only=True"):
        engine.load_checkpoint(tmp_path)
    engine.load_checkpoint(tmp_path, load_module_only=True)
    found = engine.module_state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    engine.destroy()


def test_parameters_that_were_frozen_come_from_the_model(tmp_path: Path) -> None:
    model = make(blocks=1)
    model.blocks.requires_grad_(False)
    engine = engine_of(model)
    train(engine, range(2))
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    engine = engine_of(another())
    before = utils.safe_get_full_fp32_param(engine.module.blocks[0].up.weight)
    engine.load_checkpoint(tmp_path, load_module_only=True)
    assert torch.equal(utils.safe_get_full_fp32_param(engine.module.blocks[0].up.weight), before)
    engine.destroy()


def test_parameters_of_one_side_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = saved(tmp_path)
    engine = engine_of(make(blocks=2))
    with pytest.raises(sluice.StorageError, match=r"does not have blocks.1.norm.weight \(6 such\).*load_module_strict=False"):
        engine.load_checkpoint(tmp_path, load_module_only=True)
    with caplog.at_level(logging.WARNING, "sluice"):
        engine.load_checkpoint(tmp_path, load_module_only=True, load_module_strict=False)
    assert "blocks.1.norm.weight" in caplog.text
    assert all(torch.equal(masters_of(engine)[name], value) for name, value in expected.items())
    engine.destroy()
    other = engine_of(nn.Linear(3, 3))
    with pytest.raises(sluice.StorageError, match="has other parameters than the model"):
        other.load_checkpoint(tmp_path, load_module_only=True, load_module_strict=False)
    other.destroy()


def test_weights_of_a_loop_of_ones_own(tmp_path: Path) -> None:
    model = make(blocks=1)
    optimizer = sluice.offload(model, config())
    optimizer.save_checkpoint(tmp_path / "tag")
    expected = optimizer.model_state_dict()
    optimizer.close()
    engine = engine_of(another())
    with pytest.raises(sluice.StorageError, match="sluice.offload has written it.*load_module_only=True"):
        engine.load_checkpoint(tmp_path, "tag", load_optimizer_states=False)
    assert engine.load_checkpoint(tmp_path, "tag", load_module_only=True)[1] == {}
    assert equal(engine.module_state_dict(), expected)
    engine.destroy()


def test_damaged_weights_change_nothing(tmp_path: Path) -> None:
    saved(tmp_path)
    (states,) = (tmp_path / "global_step3").glob("step-*/states.0.swap")
    data = bytearray(states.read_bytes())
    data[100::512] = bytes(byte ^ 1 for byte in data[100::512])
    states.write_bytes(data)
    engine = engine_of(another())
    before = masters_of(engine)
    with pytest.raises(sluice.StorageError, match="states.0.swap"):
        engine.load_checkpoint(tmp_path, load_module_only=True)
    assert equal(masters_of(engine), before) and train(engine, range(1))
    engine.destroy()


def test_no_room_for_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of checkpoints that is full or cannot be written leaves TMPDIR."""
    expected = saved(tmp_path / "saved")
    full = str(tmp_path / "saved" / "global_step3")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0 if folder == full else 1 << 40))
    engine = engine_of(another())
    engine.load_checkpoint(tmp_path / "saved", load_module_only=True)
    assert equal(masters_of(engine), expected)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(0))
    with pytest.raises(OSError, match="set TMPDIR") as caught:
        engine.load_checkpoint(tmp_path / "saved", load_module_only=True)
    assert caught.value.filename == full
    engine.destroy()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("by", ["folder", "program"])
def test_a_place_that_is_full_by_its_first_write(by: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota is not in the free bytes of a file system."""
    expected = saved(tmp_path / "saved")
    full, folder = str(tmp_path / "saved" / "global_step3"), tempfile.TemporaryDirectory
    export = weights._export
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))

    def refused(dir: str, **keys: Any) -> Any:
        if dir.startswith(full):
            raise OSError(number, os.strerror(number), dir)
        return folder(dir=dir, **keys)

    def failed(state: str, path: str) -> None:
        if path.startswith(full):
            raise sluice.StorageError(f"write on {path}: {os.strerror(number)}")
        export(state, path)

    if by == "folder":
        monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    else:
        monkeypatch.setattr(weights, "_export", failed)
    engine = engine_of(another())
    engine.load_checkpoint(tmp_path / "saved", load_module_only=True)
    assert equal(masters_of(engine), expected)
    full = str(tmp_path)  # of both places
    with pytest.raises(OSError, match="set TMPDIR"):
        engine.load_checkpoint(tmp_path / "saved", load_module_only=True)
    engine.destroy()


def test_a_checkpoint_of_deepspeed_is_named(tmp_path: Path) -> None:
    (tmp_path / "global_step1").mkdir()
    (tmp_path / "global_step1" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    engine = engine_of(make(blocks=1))
    for arguments in ({}, {"load_module_only": True}):
        with pytest.raises(sluice.StorageError, match="a checkpoint of DeepSpeed's.*zero_to_fp32.py"):
            engine.load_checkpoint(tmp_path, "global_step1", **arguments)
    engine.destroy()


def test_ranks_take_weights(tmp_path: Path) -> None:
    """Saved by two ranks with states on a drive, taken by two, of which a block is frozen, and by one."""
    expected = run(tmp_path / "a", 2, "nvme", steps=2, save=1)[0]
    for ranks in (2, 1):
        place = tmp_path / f"b{ranks}"
        place.mkdir()
        os.symlink(tmp_path / "a" / "saved", place / "saved")
        found = run(place, ranks, load=True, steps=0, load_arguments={"load_module_only": True}, frozen=ranks == 2)
        for mine in found:
            assert all(torch.equal(mine[1][name], expected[1][name]) for name in expected[1])
            assert torch.equal(mine[2], expected[2]) and not mine[3].any()


def test_a_checkpoint_of_another_optimizer_says_how_to_take_its_weights(tmp_path: Path) -> None:
    masters = saved(tmp_path, steps=1)
    engine = engine_of(another(), config(optimizer={"type": "Lion", "params": {"lr": 1e-3}}))
    with pytest.raises(sluice.StorageError, match=r"holds the states of Adam, .* asks for Lion: .*\(in Python load_module_only=True\)"):
        engine.load_checkpoint(tmp_path)
    engine.load_checkpoint(tmp_path, load_module_only=True)
    assert equal(masters_of(engine), masters)
    engine.destroy()
