"""Engines on a GPU (gpu_script.py), and the choice of the device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu_script
import pytest
import torch
from small_models import config, engine_of, make
from sluice._training import devices
from sluice.accelerator import get_accelerator



@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: PyTorch finds none")
@pytest.mark.parametrize("name", gpu_script.CHECKS)
def test_on_a_gpu(name: str) -> None:
    script = [sys.executable, str(Path(gpu_script.__file__)), name]
    result = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_check_of_ranks_that_share_a_device_on_the_host(tmp_path: Path) -> None:
    gpu_script.two_ranks_share_the_gpu_with_the_bits_of_one(tmp_path, "host")


def test_ranks_that_do_not_end_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *line, **more: started.append(start(*line, **more)) or started[-1])
    monkeypatch.setattr(gpu_script, "RANKS_SECONDS", 0.0)
    with pytest.raises(AssertionError, match=r"the ranks ended with \[-9, -9\]"):
        gpu_script.run_ranks(tmp_path / "two", 2, "host")
    assert [each.returncode for each in started] == [-9, -9]


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")
def test_a_gpu_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match='"device": "cuda:1"'):
        engine_of(make(), config(sluice={"device": "cuda:1"}))
    engine = engine_of(make(), config(sluice={}))
    assert engine.device == torch.device("cpu")
    assert any("device: the host (auto)" in choice for choice in engine.report()["choices"])


def test_the_gpu_is_the_scripts_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert devices.current_gpu() == 0
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert devices.current_gpu() == 2
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert devices.current_gpu() == 1
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert devices.current_gpu() == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")
def test_a_device_without_a_number_is_the_scripts_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "current_gpu", lambda: 3)
    for device, chosen in (("cuda", "cuda:3"), ("auto", "cuda:3"), ("cuda:1", "cuda:1")):
        with pytest.raises(ValueError, match=f'"device": "{chosen}"'):
            engine_of(make(), config(sluice={"device": device}))
    assert engine_of(make(), config(sluice={"device": "host"})).device == torch.device("cpu")


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
