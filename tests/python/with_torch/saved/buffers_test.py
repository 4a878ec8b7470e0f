"""Buffers of a model in checkpoints, and where a run goes on without them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, engine_of, make
from torch import nn

import sluice


class Normed(nn.Module):
    """Statistics of BatchNorm, a buffer of one's own, and one that no state_dict() has."""

    def __init__(self, own: int = 2, more: bool = False) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("own", torch.zeros(own))
        self.register_buffer("aside", torch.zeros(2), persistent=False)
        if more:
            self.register_buffer("more", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)).square().mean()


def x_of(step: int) -> torch.Tensor:
    return 3 + torch.randn(4, 4, generator=torch.Generator().manual_seed(step))


def trained(source: dict[str, Any] | None = None, **arguments: Any) -> sluice.SluiceEngine:
    engine = engine_of(make(Normed), source, **arguments)
    with torch.no_grad():
        engine.module.own.fill_(7)
        engine.module.aside.fill_(7)
    for step in range(3):
        engine.backward(engine(x_of(step)))
        engine.step()
    return engine


def test_a_loop_of_ones_own_keeps_buffers(tmp_path: Path) -> None:
    model = make(Normed)
    optimizer = sluice.offload(model, config())
    for step in range(3):
        model(x_of(step)).backward()
        optimizer.step()
    optimizer.save_checkpoint(tmp_path)
    expected = optimizer.model_state_dict()
    optimizer.close()
    optimizer = sluice.offload(make(Normed), config())
    assert optimizer.load_checkpoint(tmp_path) == 3
    loaded = optimizer.model_state_dict()
    assert loaded["norm.num_batches_tracked"] == 3
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    optimizer.close()


def test_states_without_buffers_are_loaded_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    optimizer = sluice.offload(make(Normed), config())
    optimizer.save_checkpoint(tmp_path)
    next(tmp_path.glob("client-*.pt")).unlink()  # as versions before left them
    with caplog.at_level(logging.WARNING, logger="sluice"):
        optimizer.load_checkpoint(tmp_path)
    assert "has no buffers: 4 of the model start anew, own first" in caplog.text
    optimizer.close()


def test_a_resumed_run_says_what_begins_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = config("nvme", tmp_path)
    trained(source, resume=False).destroy()
    optimizer = torch.optim.AdamW(parameters := list((model := make(Normed)).parameters()))
    with caplog.at_level(logging.WARNING, logger="sluice"):
        engine = sluice.initialize(
            model=model,
            config=source,
            optimizer=optimizer,
            model_parameters=parameters,
            lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1),
            resume=True,
        )[0]
    assert engine.global_steps == 3
    assert "the state that the run resumes from has no buffers: 4 of the model start anew, own first" in caplog.text
    assert "the run resumes at step 3, and its StepLR begins anew" in caplog.text
    engine.destroy()


def test_a_buffer_that_no_state_dict_has_is_in_no_checkpoint(tmp_path: Path) -> None:
    engine = trained()
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    engine = engine_of(make(Normed))
    engine.load_checkpoint(tmp_path)
    assert engine.module.own.tolist() == [7, 7]
    assert engine.module.aside.tolist() == [0, 0]
    engine.destroy()


@pytest.mark.parametrize("own", [1, 3])
def test_a_buffer_of_another_shape_is_refused_before_anything_is_loaded(own: int, tmp_path: Path) -> None:
    engine = trained()
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    engine = engine_of(make(Normed, own=own))
    before = engine.module_state_dict()
    for strict in (True, False):
        with pytest.raises(sluice.StorageError, match=rf"buffer own has shape \[2\], and this model's has \[{own}\]"):
            engine.load_checkpoint(tmp_path, load_module_strict=strict)
    assert engine.global_steps == engine.loop.step == 0
    assert all(torch.equal(value, before[name]) for name, value in engine.module_state_dict().items())
    engine.backward(engine(x_of(0)))
    engine.step()
    engine.destroy()


def test_missing_and_additional_buffers_are_refused_as_by_load_state_dict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = trained()
    engine.save_checkpoint(tmp_path / "without")
    other = engine_of(make(Normed, more=True))
    other.save_checkpoint(tmp_path / "with")
    with pytest.raises(sluice.StorageError, match="does not have more"):
        other.load_checkpoint(tmp_path / "without")
    with pytest.raises(sluice.StorageError, match="has more, which the model does not have"):
        engine.load_checkpoint(tmp_path / "with")
    assert engine.global_steps == 3
    other.load_checkpoint(tmp_path / "without", load_module_strict=False)
    assert other.module.own.tolist() == [7, 7]
    assert "it does not have more: these keep the model's values" in caplog.text
    engine.load_checkpoint(tmp_path / "with", load_module_strict=False)
    assert engine.module.own.tolist() == [0, 0]
    assert "it has more, which the model does not have: these keep the model's values, or are left out" in caplog.text
    engine.destroy()
    other.destroy()


class Expanded(nn.Linear):
    """A mask of one element in memory for each column, or of one for each element."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__(4, 3)
        self.register_buffer("mask", value)


def test_an_expanded_buffer_has_the_values_of_a_checkpoint_again(tmp_path: Path) -> None:
    columns = torch.tensor([1.0, 2.0, 3.0])
    engine = engine_of(Expanded(columns.expand(4, 3)))
    engine.save_checkpoint(str(tmp_path))
    columns.zero_()
    engine.load_checkpoint(str(tmp_path))
    assert columns.tolist() == [1.0, 2.0, 3.0]
    assert engine.module.mask.stride() == (0, 1)
    engine.destroy()


def test_an_expanded_buffer_that_cannot_have_the_saved_values_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    engine = engine_of(Expanded(torch.arange(12.0).view(4, 3)))
    engine.save_checkpoint(str(tmp_path))
    engine.destroy()
    engine = engine_of(Expanded(torch.ones(3).expand(4, 3)))
    before = engine.module_state_dict()
    message = r"its buffer mask has other values .*shape \[4, 3\], expanded from \[1, 3\]\): register a clone"
    with pytest.raises(sluice.StorageError, match=message):
        engine.load_checkpoint(str(tmp_path))
    after = engine.module_state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    engine.destroy()
