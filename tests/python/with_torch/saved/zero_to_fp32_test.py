"""fp32 weights of checkpoints without an engine, by DeepSpeed's names."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from buffers_test import Normed, x_of
from small_models import batch, config, engine_of, equal, make, train, without_optimizer
from torch import nn

import sluice
from sluice import utils
from sluice.utils.zero_to_fp32 import (
    convert_zero_checkpoint_to_fp32_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
    load_state_dict_from_zero_checkpoint,
)

BF16: dict[str, Any] = {"bf16": {"enabled": True}}


def trained(folder: Path, model: nn.Module | None = None, **keys: Any) -> sluice.SluiceEngine:
    """An engine that has saved after two steps."""
    engine = engine_of(make(blocks=2) if model is None else model, config(**keys))
    train(engine, range(2))
    engine.save_checkpoint(folder)
    return engine


def masters_of(engine: sluice.SluiceEngine) -> dict[str, torch.Tensor]:
    return {name: utils.safe_get_full_fp32_param(p) for name, p in engine.module.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("lazy", [False, True])
def test_weights_are_the_masters_by_all_names(lazy: bool, tmp_path: Path) -> None:
    engine = trained(tmp_path, **BF16)
    expected = masters_of(engine)
    train(engine, range(2, 3))
    found = get_fp32_state_dict_from_zero_checkpoint(str(tmp_path), lazy_mode=lazy)
    assert equal(found, expected) and all(value.dtype == torch.float32 for value in found.values())
    assert found["head.weight"] is found["embedding.weight"]
    found["position"].zero_()  # of this dict alone
    assert equal(utils.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path, "global_step2"), expected)
    model = make(blocks=2)
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(tmp_path, lazy_mode=True))
    engine.destroy()
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "global_step2").iterdir()) == ["client", "lock", "step"]


def test_buffers_are_there(tmp_path: Path) -> None:
    engine = engine_of(make(Normed), config())
    engine.backward(engine(x_of(0)))
    engine.step()
    engine.save_checkpoint(tmp_path)
    expected = engine.module_state_dict()
    found = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert equal(found, expected) and found["norm.num_batches_tracked"] == 1
    engine.destroy()
    make(Normed).load_state_dict(found)


@pytest.mark.parametrize("size", ["5GB", None, 100_000, "100KB"])
def test_files_of_torch(size: str | int | None, tmp_path: Path) -> None:
    engine = trained(tmp_path / "saved")
    expected = masters_of(engine)
    engine.destroy()
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "saved", str(tmp_path / "out"), max_shard_size=size)
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    found: dict[str, torch.Tensor] = {}
    for file in files:
        if file.endswith(".bin"):
            found |= torch.load(tmp_path / "out" / file)
            assert (tmp_path / "out" / file).stat().st_size < 110_000 or size in ("5GB", None)
    assert equal(found, expected)
    if size in ("5GB", None):
        assert files == ["pytorch_model.bin"]
        assert found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()
        assert (tmp_path / "out" / files[0]).stat().st_size < 4 * sum(p.numel() for p in make(blocks=2).parameters()) + 20_000
    else:
        index = json.loads((tmp_path / "out" / "pytorch_model.bin.index.json").read_text())
        assert index["weight_map"].keys() == expected.keys()
        assert set(index["weight_map"].values()) == set(files) - {"pytorch_model.bin.index.json"}
        assert f"pytorch_model-00001-of-{len(files) - 1:05d}.bin" in files
        assert index["metadata"]["total_size"] == 4 * sum(p.numel() for p in make(blocks=2).parameters())


def test_files_of_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    engine = trained(tmp_path / "saved")
    expected = masters_of(engine)
    engine.destroy()
    convert_zero_checkpoint_to_fp32_state_dict(tmp_path / "saved", tmp_path / "out", safe_serialization=True)
    assert equal(safetensors.load_file(tmp_path / "out" / "model.safetensors"), expected)


def test_the_command(tmp_path: Path) -> None:
    engine = trained(tmp_path / "saved")
    expected = masters_of(engine)
    engine.destroy()
    command = [sys.executable, "-W", "ignore", "-m", "sluice.utils.zero_to_fp32", str(tmp_path / "saved"), str(tmp_path / "out")]
    subprocess.run([*command, "-t", "global_step2"], check=True, timeout=120)
    assert equal(torch.load(tmp_path / "out" / "pytorch_model.bin"), expected)


def test_a_size_of_files_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_shard_size is '5 apples'"):
        convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path, max_shard_size="5 apples")


def test_a_new_model_takes_the_weights(tmp_path: Path) -> None:
    engine = trained(tmp_path)
    ids = batch(9)[0]
    with torch.no_grad():
        expected = engine(ids)
    model = make(blocks=2)
    assert load_state_dict_from_zero_checkpoint(model, tmp_path) is model
    with torch.no_grad():
        assert torch.equal(model(ids), expected)
    engine.destroy()


@pytest.mark.parametrize("ended", [False, True])
def test_the_model_of_an_engine_leaves_it(ended: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The call that Transformers' page shows after training: the model is of no engine from then on, as with DeepSpeed."""
    engine = trained(tmp_path)
    expected = masters_of(engine)
    train(engine, range(2, 3))
    if ended:
        engine.destroy()
    with caplog.at_level(logging.WARNING, "sluice"):
        model = load_state_dict_from_zero_checkpoint(engine.module, tmp_path)
    assert ("the engine of this model ends" in caplog.text) is not ended
    assert equal(model.state_dict(), expected)
    with pytest.raises(ValueError, match="destroyed"):
        engine(batch(0)[0])
    again = engine_of(model)
    assert train(again, range(2))
    again.destroy()


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
@pytest.mark.parametrize("ended", [False, True])
def test_the_model_of_an_engine_has_its_own_data_type(tier: str, ended: bool, tmp_path: Path) -> None:
    model = make(blocks=2)
    model.position.requires_grad_(False)
    (tmp_path / "drive").mkdir()
    engine = engine_of(model, config(tier, tmp_path / "drive", **BF16))
    train(engine, range(1))
    engine.save_checkpoint(tmp_path / "saved")
    position = engine.module_state_dict()["position"]
    if ended:
        engine.destroy()
        if tier == "nvme":
            model.position.data = position.float()
    expected = get_fp32_state_dict_from_zero_checkpoint(tmp_path / "saved", exclude_frozen_parameters=True)
    load_state_dict_from_zero_checkpoint(model, tmp_path / "saved")
    assert all(value.dtype == torch.float32 for value in model.parameters())
    assert torch.equal(model.position, position.float()) and not hasattr(model.head.weight, "ds_shape")
    assert all(torch.equal(value, expected[name]) for name, value in model.named_parameters() if name != "position")


def test_the_model_of_an_engine_that_only_computes_trains_again(tmp_path: Path) -> None:
    trained(tmp_path).destroy()
    model = make(blocks=2)
    source = without_optimizer(**BF16)
    engine_of(model, source)(batch(0)[0])
    load_state_dict_from_zero_checkpoint(model, tmp_path)
    assert all(value.requires_grad and value.dtype == torch.float32 for value in model.parameters())
    assert train(engine_of(model), range(1))


def test_frozen_parameters_are_those_of_the_model(tmp_path: Path) -> None:
    model = make(blocks=2)
    model.blocks[1].requires_grad_(False)
    engine = trained(tmp_path, model)
    expected = engine.module_state_dict()
    with pytest.raises(ValueError, match=r"blocks.1.norm.weight \(6 such\).*exclude_frozen_parameters=True"):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    with pytest.raises(ValueError, match="exclude_frozen_parameters=True"):
        convert_zero_checkpoint_to_fp32_state_dict(tmp_path, tmp_path / "out")
    found = get_fp32_state_dict_from_zero_checkpoint(tmp_path, exclude_frozen_parameters=True)
    assert found.keys() == {name for name in expected if not name.startswith("blocks.1")}
    assert equal(load_state_dict_from_zero_checkpoint(make(blocks=2), tmp_path).state_dict(), expected)
    assert equal(load_state_dict_from_zero_checkpoint(engine.module, tmp_path).state_dict(), expected)


def test_frozen_parameters_of_an_engine_that_has_ended(tmp_path: Path) -> None:
    model = make(blocks=2)
    model.position.requires_grad_(False)
    before = model.position.clone()
    engine = trained(tmp_path, model)
    master = utils.safe_get_full_fp32_param(model.head.weight)
    engine.destroy()
    load_state_dict_from_zero_checkpoint(model, tmp_path)
    assert torch.equal(model.position, before) and torch.equal(model.head.weight, master)


def test_frozen_parameters_of_an_engine_whose_weights_were_on_a_drive(tmp_path: Path) -> None:
    model = make(blocks=2)
    model.position.requires_grad_(False)
    (tmp_path / "drive").mkdir()
    engine = engine_of(model, config("nvme", tmp_path / "drive"))
    train(engine, range(2))
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    with pytest.raises(ValueError, match="position is not in the checkpoint.*newly built"):
        load_state_dict_from_zero_checkpoint(model, tmp_path)


def test_another_model_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path).destroy()
    with pytest.raises(ValueError, match="has no parameter of this model: it has position, and the model has weight"):
        load_state_dict_from_zero_checkpoint(nn.Linear(2, 2), tmp_path)
    with caplog.at_level(logging.WARNING, "sluice"):
        load_state_dict_from_zero_checkpoint(make(blocks=1), tmp_path)
    assert "which the model does not have (6 such)" in caplog.text


def test_a_folder_without_latest(tmp_path: Path) -> None:
    optimizer = sluice.offload(make(blocks=1), config())
    optimizer.save_checkpoint(tmp_path / "own")
    expected = optimizer.model_state_dict()
    optimizer.close()
    assert equal(get_fp32_state_dict_from_zero_checkpoint(tmp_path / "own"), expected)
    with pytest.raises(ValueError, match="has no file latest.*pass tag="):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path, "missing")
    with pytest.raises(FileNotFoundError):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(sluice.StorageError, match="no checkpoint that can be read"):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path, "empty")


@pytest.mark.parametrize("place", ["", "global_step7"])
def test_a_checkpoint_of_deepspeed_is_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "global_step7").mkdir()
    (tmp_path / place / "mp_rank_00_model_states.pt").touch()
    if place:
        (tmp_path / "latest").write_text(place)
    with pytest.raises(sluice.StorageError, match="a checkpoint of DeepSpeed's.*zero_to_fp32.py"):
        get_fp32_state_dict_from_zero_checkpoint(tmp_path)


def test_the_names_of_deepspeed() -> None:
    code = (
        "import sluice.as_deepspeed\n"
        "from deepspeed.utils.zero_to_fp32 import load_state_dict_from_zero_checkpoint as load\n"
        "import deepspeed\n"
        "assert deepspeed.utils.zero_to_fp32.load_state_dict_from_zero_checkpoint is load"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_files_of_deepspeed_are_refused_with_the_way_out(tmp_path: Path) -> None:
    """Lightning's own conversion asks for them."""
    for call in (lambda: utils.zero_to_fp32.get_optim_files(tmp_path), lambda: utils.zero_to_fp32.get_model_state_file(tmp_path, 3)):
        with pytest.raises(ValueError, match="in place of Lightning's function"):
            call()
