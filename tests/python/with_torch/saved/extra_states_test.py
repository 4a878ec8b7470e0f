"""What modules keep by get_extra_state() is in checkpoints."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, engine_of, make
from torch import nn

import sluice
from sluice._training.saved import checkpoint


class Counting(nn.Module):
    """Scales its output by how often it was called, and keeps the last input's mean."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls, self.mean = 0, torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = x.detach().mean()
        return self.linear(x) * (1 + self.calls / 10)

    def get_extra_state(self) -> dict[str, Any]:
        return {"calls": self.calls, "mean": self.mean}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.calls, self.mean = state["calls"], state["mean"]


class Named(nn.Linear):
    """Gives a state that it does not take."""

    def get_extra_state(self) -> str:
        return "named"


class Uncounted(Counting):
    get_extra_state, set_extra_state = nn.Module.get_extra_state, nn.Module.set_extra_state  # type: ignore[assignment]


class Model(nn.Sequential):
    def __init__(self, counts: bool = True) -> None:
        super().__init__(Counting() if counts else Uncounted(), Named(4, 4))


def x_of(step: int) -> torch.Tensor:
    return torch.randn(4, 4, generator=torch.Generator().manual_seed(step))


def train(engine: sluice.SluiceEngine, steps: range) -> float:
    loss = torch.zeros(())
    for step in steps:
        engine.backward(loss := engine(x_of(step)).square().mean())
        engine.step()
    return loss.item()


def test_a_run_goes_on_with_the_extra_states_of_its_modules(tmp_path: Path) -> None:
    engine = engine_of(make(Model))
    train(engine, range(3))
    engine.save_checkpoint(tmp_path)
    expected = train(engine, range(3, 5))
    engine.destroy()
    engine = engine_of(model := make(Model))
    engine.load_checkpoint(tmp_path)
    assert model[0].calls == 3
    assert torch.equal(model[0].mean, x_of(2).mean())
    assert train(engine, range(3, 5)) == expected
    engine.destroy()
    engine = engine_of(model := make(Model))
    engine.load_checkpoint(tmp_path, load_module_only=True)
    assert model[0].calls == 3
    engine.destroy()


def test_extra_states_of_other_modules_are_refused_as_by_load_state_dict(tmp_path: Path) -> None:
    counting, plain = engine_of(make(Model)), engine_of(make(Model, counts=False))
    train(counting, range(1))
    counting.save_checkpoint(tmp_path / "counting")
    plain.save_checkpoint(tmp_path / "plain")
    with pytest.raises(sluice.StorageError, match="it has none of '0'; load_module_strict=False"):
        counting.load_checkpoint(tmp_path / "plain")
    with pytest.raises(sluice.StorageError, match="it has those of '0', which take none in the model"):
        plain.load_checkpoint(tmp_path / "counting")
    counting.load_checkpoint(tmp_path / "plain", load_module_strict=False)
    assert counting.module[0].calls == 1
    counting.destroy()
    plain.destroy()


def test_an_older_checkpoint_is_loaded_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_model = checkpoint._of_model
    with monkeypatch.context() as patched:  # as versions before wrote it
        patched.setattr(checkpoint, "_of_model", lambda offloaded: {k: v for k, v in of_model(offloaded).items() if k != "extra_states"})
        optimizer = sluice.offload(make(Model), config())
        optimizer.save_checkpoint(tmp_path)
        optimizer.close()
    optimizer = sluice.offload(make(Model), config())
    with caplog.at_level(logging.WARNING, logger="sluice"):
        optimizer.load_checkpoint(tmp_path)
    assert "has no extra states (get_extra_state): those of 1 modules start anew, 0 first" in caplog.text
    optimizer.close()


def test_a_resumed_run_says_that_extra_states_begin_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = config("nvme", tmp_path)
    engine = engine_of(make(Model), source, resume=False)
    train(engine, range(1))
    engine.destroy()
    with caplog.at_level(logging.WARNING, logger="sluice"):
        engine = engine_of(make(Model), source, resume=True)
    assert "the state that the run resumes from has no extra states" in caplog.text
    engine.destroy()
