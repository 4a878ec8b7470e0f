"""Configurations that `sluice.config.load` has read, with files over them, in every place that takes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, make, without_optimizer

import sluice
from sluice import zero

BUDGET = 96 << 20


@pytest.fixture
def loaded(tmp_path: Path) -> sluice.config.Config:
    (tmp_path / "ds.json").write_text(json.dumps(config("cpu", optimizer={"type": "AdamW", "params": {"lr": 1e-3}})))
    (tmp_path / "tuned.json").write_text(json.dumps({"sluice": {"device_bytes": "96MiB"}}))
    return sluice.config.load(tmp_path / "ds.json", tuned=[tmp_path / "tuned.json"])


def budget_of(plan: Any) -> int:
    return int(plan["budget_bytes"]["device"])


def test_a_plan_of_a_module_has_the_files_over_it(loaded: sluice.config.Config) -> None:
    assert budget_of(sluice.plan(make(), loaded).data) == BUDGET


def test_a_plan_of_a_module_is_for_the_ranks_that_run(tmp_path: Path) -> None:
    for_eight = sluice.config.load(config("cpu"), world_size=8)
    with pytest.raises(ValueError, match="was loaded for 8 ranks, and 1 train this module"):
        sluice.plan(make(), for_eight)


def test_an_engine_takes_one(loaded: sluice.config.Config) -> None:
    engine = sluice.initialize(model=make(), config=loaded)[0]
    assert budget_of(engine.report()["plan"]) == BUDGET
    assert engine.optimizer_name() == "adamw"
    assert engine.config["train_micro_batch_size_per_gpu"] == 2
    engine.destroy()


def test_an_engine_without_an_optimizer_takes_one(tmp_path: Path) -> None:
    keys = without_optimizer("cpu", scheduler={"type": "WarmupLR", "params": {}})
    (tmp_path / "ds.json").write_text(json.dumps(keys))
    (tmp_path / "tuned.json").write_text(json.dumps({"sluice": {"device_bytes": "96MiB"}}))
    loaded = sluice.config.load(tmp_path / "ds.json", tuned=[tmp_path / "tuned.json"])
    engine, _, _, scheduler = sluice.initialize(model=make(), config=loaded)
    assert budget_of(engine.report()["plan"]) == BUDGET
    assert scheduler is None
    engine.destroy()


def test_a_loop_of_ones_own_takes_one(loaded: sluice.config.Config) -> None:
    optimizer = sluice.offload(make(), loaded)
    assert budget_of(optimizer.report()["plan"]) == BUDGET
    optimizer.close()


def test_parameters_are_made_on_the_drive_of_one(tmp_path: Path) -> None:
    loaded = sluice.config.load(config("nvme", tmp_path))
    with zero.Init(config_dict_or_path=loaded):
        layer = torch.nn.Linear(64, 64)
    assert layer.weight.shape == (64, 64)
