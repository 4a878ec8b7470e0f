"""Rates and betas that a script sets between steps, through a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_models import config, engine_of, make, train

from sluice.runtime import lr_schedules

SECTIONS: dict[str, dict[str, Any]] = {
    "WarmupLR": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2},
    "OneCycle": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 4},
    "StepLR": {"step_size": 2},
}


@pytest.mark.parametrize("name", SECTIONS)
@pytest.mark.parametrize("steps", [0, 2])
def test_they_are_those_of_the_run_that_was_not_interrupted(name: str, steps: int, tmp_path: Path) -> None:
    keys = config(scheduler={"type": name, "params": SECTIONS[name]})
    engine = engine_of(make(blocks=1), keys)
    train(engine, range(steps))
    engine.optimizer.param_groups[0].update(lr=3e-3, betas=(0.7, 0.95))
    engine.save_checkpoint(tmp_path)
    expected = train(engine, range(steps, steps + 4))
    engine.destroy()

    engine = engine_of(make(blocks=1), keys)
    engine.load_checkpoint(tmp_path)
    group = engine.optimizer.param_groups[0]
    assert (group["lr"], tuple(group["betas"])) == (3e-3, (0.7, 0.95))
    assert train(engine, range(steps, steps + 4)) == expected
    engine.destroy()


def test_a_schedule_as_an_object_leaves_them_too(tmp_path: Path) -> None:
    def engine_with_schedule() -> Any:
        def schedule(optimizer: Any) -> Any:
            return lr_schedules.OneCycle(optimizer, 1e-4, 1e-3, cycle_first_step_size=4)

        return engine_of(make(blocks=1), lr_scheduler=schedule)

    engine = engine_with_schedule()
    train(engine, range(2))
    engine.optimizer.param_groups[0].update(lr=3e-3, betas=(0.7, 0.95))
    engine.save_checkpoint(tmp_path)
    expected = train(engine, range(2, 6))
    engine.destroy()
    engine = engine_with_schedule()
    engine.load_checkpoint(tmp_path)
    assert train(engine, range(2, 6)) == expected
    engine.load_checkpoint(tmp_path, load_optimizer_states=False)  # groups are those of the engine, with the schedule's rates
    assert engine.optimizer.param_groups[0]["lr"] == engine.lr_scheduler.get_lr()[0]
    engine.destroy()
