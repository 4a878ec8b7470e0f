"""Files of Python have the modes that open() gives, by the umask of the process: weights may be shared."""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path

import pytest
import torch
from small_models import config, engine_of, make, train

from sluice import utils


def modes(folder: Path) -> dict[str, int]:
    """Without the states and their lock, which the compiled part writes for their owner alone."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock" and "step-" not in path.parent.name)
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077], ids=oct)
def test_checkpoints_and_weights_follow_the_umask(umask: int, tmp_path: Path) -> None:
    has_safetensors = importlib.util.find_spec("safetensors") is not None
    engine = engine_of(make(blocks=1), config())
    train(engine, range(1))
    before = os.umask(umask)
    try:
        engine.save_checkpoint(tmp_path, tag="t")
        engine.save_16bit_model(tmp_path)
        if has_safetensors:
            engine.save_16bit_model(tmp_path, "model.safetensors")
        utils.zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "out", tag="t")
        torch.save({}, tmp_path / "by_torch.bin")
    finally:
        os.umask(before)
    engine.destroy()
    found = modes(tmp_path)
    assert {"latest", "pytorch_model.bin", "by_torch.bin"} < found.keys()
    assert ("model.safetensors" in found) == has_safetensors
    assert set(found.values()) == {0o666 & ~umask}, found
