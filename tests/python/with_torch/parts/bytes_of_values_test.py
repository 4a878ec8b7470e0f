"""Values of parameters and states that a script reads or sets move no more bytes than they have to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_test import run_text
from small_models import config, engine_of
from torch import nn

from sluice import utils, zero

WIDTH, TILE = 1024, 524288  # elements of a tile, the fewest


class Pair(nn.Module):
    """One unit of four tiles and a bit: parameters begin and end inside tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y


def engine_with(tier: str, folder: Path) -> Any:
    torch.manual_seed(0)
    keys = config(tier, folder, bf16={"enabled": True})
    keys["zero_optimization"]["sub_group_size"] = TILE
    engine = engine_of(nn.Sequential(Pair(), Pair()), keys, units=["Pair"])
    engine.backward(engine(torch.ones(1, WIDTH, dtype=torch.bfloat16)).float().square().mean())
    engine.step()
    utils.safe_get_full_fp32_param(engine.module[0].first.bias)  # waits for the updates
    return engine


class Moved:
    """Bytes that the drive has read and written since."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._before = engine, engine.report()

    def bytes(self, what: str) -> int:
        return int(self._engine.report()[what]) - int(self._before[what])


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_each_parameter_has_its_own_values_across_tiles(tier: str, tmp_path: Path) -> None:
    engine = engine_with(tier, tmp_path)
    parameters = dict(engine.module.named_parameters())
    expected = {name: utils.safe_get_full_fp32_param(each) for name, each in parameters.items()}
    moments = {name: utils.safe_get_full_optimizer_state(each, "exp_avg") for name, each in parameters.items()}
    for name in ("0.first.bias", "1.second.weight"):
        expected[name] = torch.randn_like(expected[name])
        utils.safe_set_full_fp32_param(parameters[name], expected[name])
        moments[name] = torch.randn_like(expected[name])
        utils.safe_set_full_optimizer_state(parameters[name], moments[name], "exp_avg")
    found = engine.module_state_dict()
    for name, each in parameters.items():
        assert torch.equal(utils.safe_get_full_fp32_param(each), expected[name])
        assert torch.equal(utils.safe_get_full_optimizer_state(each, "exp_avg"), moments[name])
        assert (found[name].float() - expected[name]).abs().max() <= expected[name].abs().max() / 128
    engine.destroy()


def test_one_master_is_read_from_its_tile(tmp_path: Path) -> None:
    engine = engine_with("nvme", tmp_path)
    moved = Moved(engine)
    assert utils.safe_get_full_fp32_param(engine.module[0].first.bias) is not None
    assert 0 < moved.bytes("nvme_read_bytes") <= 12 * TILE
    engine.destroy()


def test_a_state_dict_reads_each_unit_once(tmp_path: Path) -> None:
    engine = engine_with("nvme", tmp_path)
    all_bytes = 2 * sum(each.ds_numel for each in engine.module.parameters())
    for states in (engine.module_state_dict, engine.module.state_dict):
        moved = Moved(engine)
        assert len(states()) == 8
        assert moved.bytes("nvme_read_bytes") < 1.1 * all_bytes
    engine.destroy()


def test_changes_of_a_unit_are_written_once(tmp_path: Path) -> None:
    engine = engine_with("nvme", tmp_path)
    parameters = list(engine.module.parameters())
    moved = Moved(engine)
    with zero.GatheredParameters(parameters, modifier_rank=0), torch.no_grad():
        for each in parameters:
            each.add_(1)
    assert moved.bytes("nvme_written_bytes") < 1.1 * 14 * sum(each.ds_numel for each in parameters)
    engine.destroy()


OF_THE_SECOND_RANK = """
import json, os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/parts", sys.argv[1] + "/.."]
from bytes_of_values_test import Moved, engine_with
from sluice import utils

engine = engine_with("nvme", Path(sys.argv[2]))
bias = engine.module[0].second.bias  # in the second half of its unit
moved = Moved(engine)
utils.safe_set_full_fp32_param(bias, utils.safe_get_full_fp32_param(bias) + 1)
rank = os.environ["RANK"]
open(os.path.join(sys.argv[2], rank), "w").write(json.dumps(moved.bytes("nvme_written_bytes")))
engine.destroy()
"""


def test_a_rank_without_elements_of_a_parameter_writes_nothing(tmp_path: Path) -> None:
    first, second = run_text(OF_THE_SECOND_RANK, tmp_path)
    assert first == 0 < second
