"""TRL's trainers with the module deepspeed: the losses of a run without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hf_runs import run, write_config, zero_config


KINDS = ("sft", "dpo", "precomputed", "grpo")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process for all: the import of TRL takes longer than a course."""
    folder = tmp_path_factory.mktemp("trl")
    run("trl_script.py", folder, write_config(folder, zero_config(scheduler=None)), *KINDS)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_plain_pytorch(trained: Path, kind: str) -> None:
    plain, offloaded = trained / kind / "plain", trained / kind / "offloaded"
    expected, logged = (json.loads((folder / "log.json").read_text()) for folder in (plain, offloaded))
    steps = [(a, b) for a, b in zip(expected, logged, strict=True) if "loss" in a]
    assert len(steps) == 5
    for a, b in steps:
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-6)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=2e-5)
    assert steps[0][1]["loss"] != steps[-1][1]["loss"]
    weights = sorted(path.name for path in (plain / "final").iterdir() if path.suffix in (".safetensors", ".json"))
    assert weights == sorted(path.name for path in (offloaded / "final").iterdir() if path.suffix in (".safetensors", ".json"))
