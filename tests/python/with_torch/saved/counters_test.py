"""An engine's counters in checkpoints, where a script sets them."""

from __future__ import annotations

from pathlib import Path

import torch
from small_models import engine_of, make
from torch import nn

import sluice


class Small(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 1)


def step_of(engine: sluice.SluiceEngine) -> None:
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()


def test_a_script_may_set_global_steps(tmp_path: Path) -> None:
    engine = engine_of(make(Small))
    step_of(engine)
    engine.global_steps = 100
    step_of(engine)
    assert (engine.global_steps, engine.loop.step) == (101, 2)
    engine.save_checkpoint(tmp_path)
    step_of(engine)
    weight = engine.module_state_dict()["weight"]
    engine.destroy()

    engine = engine_of(make(Small))
    folder, _ = engine.load_checkpoint(tmp_path)
    assert folder == str(tmp_path / "global_step101")
    assert (engine.global_steps, engine.loop.step) == (101, 2)
    step_of(engine)
    assert engine.global_steps == 102
    assert torch.equal(engine.module_state_dict()["weight"], weight)
    engine.destroy()
