"""Configuration files as people write them: comments, trailing commas, keys without quotes. They mean what their JSON means."""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, make, without_optimizer

import sluice

COMMENTED = """\ufeff{
  # of a tutorial
  "train_micro_batch_size_per_gpu": 2, // samples
  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95,]}}, /* fine */
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
  sluice: {"device": "host"},
}"""
PARAMS = {"lr": 1e-4, "betas": [0.9, 0.95]}


@pytest.fixture
def commented(tmp_path: Path) -> str:
    (tmp_path / "ds.json").write_text(COMMENTED, encoding="utf-8")
    return str(tmp_path / "ds.json")


@pytest.mark.parametrize("way", ["config", "model_parameters", "groups", "optimizer", "args"])
def test_every_way_to_make_an_engine_takes_one(way: str, commented: str) -> None:
    model = make()
    given: dict[str, Any] = {
        "config": {"config": commented},
        "model_parameters": {"config": commented, "model_parameters": model.parameters()},
        "groups": {"config": commented, "model_parameters": [{"params": list(model.parameters())}]},
        "optimizer": {"config": commented, "optimizer": torch.optim.AdamW(model.parameters())},
        "args": {"args": argparse.Namespace(deepspeed_config=commented), "model_parameters": model.parameters()},
    }[way]
    engine = sluice.initialize(model=model, **given)[0]
    assert engine.optimizer_params() == PARAMS
    assert (engine.scheduler_name(), engine.scheduler_params()) == ("WarmupLR", {"warmup_num_steps": 10})
    assert list(engine.config) == ["train_micro_batch_size_per_gpu", "optimizer", "scheduler", "sluice"]
    engine.destroy()


def test_a_comment_does_not_make_an_optimizer(tmp_path: Path) -> None:
    keys = without_optimizer()
    (tmp_path / "ds.json").write_text("// no optimizer\n" + json.dumps(keys))
    engine = sluice.initialize(model=make(), config=str(tmp_path / "ds.json"))[0]
    assert not engine.has_optimizer_section()
    with pytest.raises(ValueError, match="optimizer"):
        engine.backward(engine(batch(0)[0]).float().mean())
    engine.destroy()
    with pytest.raises(ValueError, match="needs an optimizer"):
        sluice.offload(make(), str(tmp_path / "ds.json"))


def test_a_loop_of_ones_own_takes_one(commented: str) -> None:
    model = make()
    optimizer = sluice.offload(model, commented, optimizer=torch.optim.AdamW(model.parameters()))
    model(batch(0)[0]).float().mean().backward()
    optimizer.step()
    optimizer.close()


def test_init_finds_the_drive_of_one(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{zero_optimization: {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "%s"}}, # a drive\n}' % tmp_path
    )
    with sluice.zero.Init(config_dict_or_path=str(tmp_path / "ds.json")):
        model = make(blocks=1)
    assert f"{tmp_path}/sluice-parameter-" in Path("/proc/self/maps").read_text()
    del model


@pytest.mark.parametrize("zero", [True, {"offload_param": "nvme"}])
def test_init_leaves_other_forms_of_a_section_to_the_engine(zero: Any) -> None:
    with sluice.zero.Init(config_dict_or_path={"zero_optimization": zero}):
        make(blocks=1)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1', '{"train_batch_size": 2, "train_batch_size": 4}', '{"a": "\x00"}'])
@pytest.mark.parametrize("way", ["config", "model_parameters", "optimizer", "init", "offload"])
def test_a_broken_file_is_a_config_error_with_its_place(text: str, way: str, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(text)
    path, model = str(tmp_path / "ds.json"), make(blocks=1)
    with pytest.raises(sluice.config.ConfigError, match=r"ds\.json:1:\d+: "):
        if way == "init":
            sluice.zero.Init(config_dict_or_path=path)
        elif way == "offload":
            sluice.offload(model, path)
        elif way == "config":
            sluice.initialize(model=model, config=path)
        elif way == "optimizer":
            sluice.initialize(model=model, config=path, optimizer=torch.optim.AdamW(model.parameters()))
        else:
            sluice.initialize(model=model, config=path, model_parameters=model.parameters())


@pytest.mark.parametrize("optimizer", ["AdamW", {"type": "AdamW", "params": 3}, 5])
def test_a_section_of_another_form_is_a_config_error(optimizer: Any) -> None:
    model = make(blocks=1)
    with pytest.raises(sluice.config.ConfigError, match="optimizer"):
        sluice.initialize(model=model, config=config(optimizer=optimizer), model_parameters=model.parameters())


def test_a_text_in_base64_stands_in_place_of_a_file() -> None:
    text = base64.urlsafe_b64encode(json.dumps(config()).encode()).decode()
    model = make()
    engine = sluice.initialize(model=model, config=text, model_parameters=model.parameters())[0]
    assert engine.optimizer_params() == config()["optimizer"]["params"]
    engine.destroy()
