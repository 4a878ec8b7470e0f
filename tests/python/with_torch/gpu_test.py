"""Engines on a GPU, in scripts that have used it before and go on to use it; and the choice of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Tied, batch, config, differences, loss_of, make

import sluice
from sluice._training import devices
from sluice.accelerator import get_accelerator

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: PyTorch finds none")
STEPS = 5


def engine_on(tier: str, folder: Path, model: Any = None, **sluice_keys: Any) -> Any:
    keys = config(tier, folder, gradient_clipping=1.0, sluice={"deterministic": True, **sluice_keys})
    return sluice.initialize(model=make(Tied) if model is None else model, config=keys)[0]


def train_on_gpu(engine: Any) -> list[float]:
    losses = []
    for step in range(STEPS):
        ids, targets = (part.to(engine.device) for part in batch(step))
        loss = loss_of(engine(ids), targets)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@on_gpu
def test_a_script_uses_the_gpu_before_and_after(tmp_path: Path) -> None:
    torch.cuda.set_device(0)
    kept = torch.ones(1 << 20, device="cuda")
    engine = engine_on("cpu", tmp_path)
    assert engine.device == torch.device("cuda", 0)
    train_on_gpu(engine)
    assert torch.cuda.max_memory_allocated() > kept.nbytes
    engine.destroy()
    assert (kept + 1).sum().item() == 2 << 20


@on_gpu
def test_tiers_have_equal_bits_and_the_losses_of_plain_pytorch(tmp_path: Path) -> None:
    courses = []
    for tier in ("device", "cpu", "nvme"):
        engine = engine_on(tier, tmp_path)
        courses.append(train_on_gpu(engine))
        engine.destroy()
    assert courses[0] == courses[1] == courses[2]
    plain = make(Tied).cuda()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    expected = []
    for step in range(STEPS):
        ids, targets = (part.cuda() for part in batch(step))
        loss = loss_of(plain(ids), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert differences(courses[0], expected) < 1e-5


@on_gpu
def test_a_model_may_be_on_the_gpu_already(tmp_path: Path) -> None:
    here, there = engine_on("cpu", tmp_path), engine_on("cpu", tmp_path, make(Tied).cuda())
    assert train_on_gpu(here) == train_on_gpu(there)
    weights = there.module_state_dict()
    assert {value.device.type for value in weights.values()} == {"cpu"}


@on_gpu
def test_another_stream_is_refused(tmp_path: Path) -> None:
    engine = engine_on("cpu", tmp_path)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(ValueError, match="another CUDA stream"):
        engine(batch(0)[0].cuda())


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")
def test_a_gpu_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='"device": "cuda:1"'):
        engine_on("cpu", tmp_path, device="cuda:1")
    engine = engine_on("cpu", tmp_path)
    assert engine.device == torch.device("cpu")
    assert any("device: the host (auto)" in choice for choice in engine.report()["choices"])


def test_the_gpu_is_the_scripts_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert devices.current_gpu() == 0
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert devices.current_gpu() == 2
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert devices.current_gpu() == 3


def test_the_accelerator_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert get_accelerator().device_name(1) == "cuda:1"
    assert get_accelerator().device_count() == 4
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert get_accelerator().device_name(0) == "cpu"
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    with pytest.raises(ValueError, match="xpu"):
        get_accelerator()
