"""Engines that are dropped, that cannot be made, and passes that fail."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from small_models import config, engine_of, make, train


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
