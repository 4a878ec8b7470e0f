"""Changes inside GatheredParameters touch the masters of the elements that changed, and of no other."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_test import run_text
from small_models import MEMORY_OF_ITS_OWN, config, engine_of, make, train
from torch import nn

from sluice import utils, zero


def bf16_engine(tier: str = "cpu", folder: Path | None = None) -> tuple[Any, nn.Parameter]:
    """After steps whose masters are between two numbers of bf16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8))
    keys = config(tier, folder, bf16={"enabled": True}, optimizer={"type": "AdamW", "params": {"lr": 1e-5}})
    engine = engine_of(model, keys)
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 8, dtype=torch.bfloat16)).float().square().mean())
        engine.step()
    return engine, model[0].weight


def test_other_elements_keep_their_masters() -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    assert not torch.equal(expected, expected.bfloat16().float())
    expected[0] = 0
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight[0] = 0
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    assert torch.equal(engine.module_state_dict()["0.weight"], expected.bfloat16())
    expected[1, 0] = -0.0
    for value in (0.0, -0.0):
        with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
            weight[1, 0] = value
    assert torch.equal(torch.signbit(utils.safe_get_full_fp32_param(weight)), torch.signbit(expected))
    engine.destroy()


@pytest.mark.parametrize("frozen", [False, True])
def test_an_assigned_parameter_is_refused_and_taken_out_again(frozen: bool, tmp_path: Path) -> None:
    model: Any = make(blocks=1)  # its embedding is the head's weight too
    model.embedding.weight.requires_grad_(not frozen)
    engine, weights = engine_of(model), list(model.parameters())
    expected = {name: value.clone() for name, value in engine.module_state_dict().items()}
    values = {name: value + 1 for name, value in expected.items() if name in ("embedding.weight", "head.weight")}
    with pytest.raises(ValueError, match="parameter embedding.weight was replaced by another object inside GatheredParameters, which keeps none"):
        with zero.GatheredParameters(weights, modifier_rank=0):
            model.load_state_dict(values, strict=False, assign=True)
    found = engine.module_state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert all(mine is before for mine, before in zip(model.parameters(), weights, strict=True))
    with zero.GatheredParameters(weights, modifier_rank=0):
        model.load_state_dict(values, strict=False)
    assert torch.equal(engine.module_state_dict()["head.weight"], values["head.weight"])
    train(engine, range(1))
    model.norm.bias = nn.Parameter(torch.ones(64))
    with pytest.raises(ValueError, match="parameter norm.bias came into the model after the engine"):
        engine.save_checkpoint(str(tmp_path))
    engine.destroy()


@pytest.mark.parametrize("outer", [None, 0])
def test_changes_of_inner_contexts_add_up(outer: int | None) -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    expected[:2] = 1
    with zero.GatheredParameters(weight, modifier_rank=outer), torch.no_grad():
        for row in range(2):
            with zero.GatheredParameters(weight, modifier_rank=0):
                weight[row] = 1
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    engine.destroy()


@pytest.mark.parametrize("keys", [{"device": "host"}, MEMORY_OF_ITS_OWN], ids=["in_place", "memory_of_its_own"])
@pytest.mark.parametrize("outer", ["the same parameter", "another one"])
def test_changes_of_a_context_and_of_inner_ones_add_up(outer: str, keys: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    engine, weight = engine_of(model, config(sluice=keys)), model[0].weight
    expected = utils.safe_get_full_fp32_param(weight)
    expected[:3] = 1
    with zero.GatheredParameters(weight if outer == "the same parameter" else model[1].weight, modifier_rank=0), torch.no_grad():
        if outer == "the same parameter":
            weight[2] = 1
        for row in range(3):
            with zero.GatheredParameters(weight, modifier_rank=0):
                weight[row] = 1
        with zero.GatheredParameters(weight):
            assert torch.equal(weight, expected)
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    engine.destroy()


@pytest.mark.parametrize("depth", [1, 2])
def test_equal_values_that_an_inner_context_writes_are_no_write_of_the_outer_one(depth: int) -> None:
    engine, weight = bf16_engine()
    bias = engine.module[0].bias
    with zero.GatheredParameters(bias, modifier_rank=0):
        nn.init.zeros_(bias)
    expected = utils.safe_get_full_fp32_param(weight)
    with zero.GatheredParameters(list(engine.module.parameters())), contextlib.ExitStack() as inner:
        for _ in range(depth):
            inner.enter_context(zero.GatheredParameters([bias], modifier_rank=0))
        nn.init.zeros_(bias)
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    assert not utils.safe_get_full_fp32_param(bias).any()
    engine.destroy()


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_write_of_the_outer_context_beside_that_of_an_inner_one_is_an_error(value: float, is_first: bool) -> None:
    engine, weight = bf16_engine()
    bias = engine.module[0].bias
    with pytest.raises(ValueError, match="0.bias was written to .* without modifier_rank is for reading"):
        with zero.GatheredParameters([weight, bias]), torch.no_grad():
            if is_first:
                bias.zero_()
            with zero.GatheredParameters([bias], modifier_rank=0):
                bias.fill_(value)
            if not is_first:
                bias.add_(1)
    engine.destroy()


def test_a_change_that_an_outer_context_takes_back_is_none() -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        before = weight.clone()
        with zero.GatheredParameters(weight, modifier_rank=0):
            weight[0] = 1
        weight.copy_(before)
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    assert torch.equal(engine.module_state_dict()["0.weight"], expected.bfloat16())
    engine.destroy()


@pytest.mark.parametrize("end", ["destroyed", "dropped"])
def test_a_parameter_of_an_engine_that_has_ended_is_named(end: str, tmp_path: Path) -> None:
    engine, weight = bf16_engine("nvme", tmp_path)
    if end == "destroyed":
        engine.destroy()
    parameters = list(engine.module.parameters())
    del engine  # and its model, which would keep it
    gc.collect()
    with pytest.raises(ValueError, match=r"shape \[8, 8\] has no values: its engine was destroyed, or nothing uses it"):
        with zero.GatheredParameters(parameters):
            pass
    with zero.GatheredParameters(weight, enabled=False):
        assert weight.numel() == 0


@pytest.mark.parametrize("strict", [True, False])
def test_an_engine_says_how_weights_are_loaded(strict: bool) -> None:
    engine, _ = bf16_engine()
    weights = {name: value + 1 for name, value in engine.state_dict().items()}
    with pytest.raises(ValueError, match=r"GatheredParameters\(list\(engine\.module\.parameters\(\)\), modifier_rank=0\)"):
        engine.load_state_dict(weights, strict=strict)
    with zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0):
        engine.module.load_state_dict(weights, strict=strict)
    assert all(torch.equal(value, weights[name]) for name, value in engine.state_dict().items())
    engine.destroy()


def test_a_key_encoder_follows_between_steps() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"q": nn.Linear(8, 8), "k": nn.Linear(8, 8).requires_grad_(False)})
    engine = engine_of(model, config())
    pairs = list(zip(model["q"].parameters(), model["k"].parameters()))
    before = engine.state_dict()
    with zero.GatheredParameters([each for pair in pairs for each in pair], modifier_rank=0), torch.no_grad():
        for q, k in pairs:
            k.copy_(k * 0.75 + q * 0.25)
    after = engine.state_dict()
    for name in ("weight", "bias"):
        assert torch.equal(after[f"k.{name}"], before[f"k.{name}"] * 0.75 + before[f"q.{name}"] * 0.25)
        assert torch.equal(after[f"q.{name}"], before[f"q.{name}"])
    engine.destroy()


WRITTEN_ON_ONE_RANK = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from small_models import config, engine_of, make, train
from sluice import zero
rank, sums = int(os.environ["RANK"]), []
for stage, precision in ((1, "fp16"), (3, "fp16"), (1, "bf16")):
    engine = engine_of(make(blocks=1), config("device", zero_optimization={"stage": stage}, **{precision: {"enabled": True}}))
    train(engine, range(1))
    before = engine.module_state_dict()
    try:
        with zero.GatheredParameters(engine.module.norm.weight), torch.no_grad():
            if rank == 0:
                engine.module.norm.weight.fill_(5)
    except ValueError as error:
        assert rank == 0 and "norm.weight was written to inside GatheredParameters" in str(error), error
        assert ("may keep what was written" in str(error)) == (precision == "bf16"), error
    else:
        assert rank == 1
    after = engine.module_state_dict()
    assert precision == "bf16" or all(torch.equal(after[name], value) for name, value in before.items())
    sums.append({name: value.double().sum().item() for name, value in after.items()})
    train(engine, range(1, 2))
    engine.destroy()
open(os.path.join(sys.argv[2], str(rank)), "w").write(json.dumps(sums))
"""


def test_a_write_for_reading_on_one_rank_leaves_equal_weights_on_all(tmp_path: Path) -> None:
    first, second = run_text(WRITTEN_ON_ONE_RANK, tmp_path)
    assert first == second


@pytest.mark.parametrize(("tier", "durability"), [("cpu", "process"), ("nvme", "process"), ("nvme", "none")])
def test_a_change_after_the_last_step_is_there_after_a_resume(tier: str, durability: str, tmp_path: Path) -> None:
    own = {"device": "host", "durability": durability}
    if tier == "cpu":
        own |= {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_every": 1}
    (tmp_path / "swap").mkdir()

    def resumed() -> tuple[Any, nn.Parameter]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8))
        engine = engine_of(model, config(tier, tmp_path / "swap", sluice=own), resume=True)
        return engine, model[0].weight

    engine, weight = resumed()
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 8)).square().mean())
        engine.step()
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight[0] = 0
    expected = utils.safe_get_full_fp32_param(weight)
    engine.destroy()
    engine, weight = resumed()
    assert engine.global_steps == 3
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    engine.destroy()


@pytest.mark.parametrize("keys", [{"device": "host"}, MEMORY_OF_ITS_OWN], ids=["in_place", "memory_of_its_own"])
@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("wrong", ["not all finite", r"of shape \[64\] was given one of \[2, 64\]"])
def test_of_changes_that_cannot_be_set_none_is(wrong: str, precision: dict[str, Any], keys: dict[str, Any]) -> None:
    model = make()
    model.blocks[2].requires_grad_(False)
    engine = engine_of(model, config(sluice=keys, **precision))
    train(engine, range(2))
    given = [model.blocks[0].norm.bias, model.norm.bias, model.blocks[1].norm.bias, model.blocks[2].norm.bias]
    weights = engine.module_state_dict()
    masters = [utils.safe_get_full_fp32_param(parameter) for parameter in given[:3]]
    with pytest.raises(ValueError, match=f"parameter norm.bias .*{wrong}.* inside GatheredParameters"):
        with zero.GatheredParameters(given, modifier_rank=0), torch.no_grad():
            for parameter in given:
                parameter.fill_(3)
            if "finite" in wrong:
                model.norm.bias[1] = torch.nan
            else:
                model.norm.bias.data = torch.ones(2, 64, dtype=model.norm.bias.dtype)
    assert all(torch.equal(value, weights[name]) for name, value in engine.module_state_dict().items())
    for parameter, master in zip(given, masters):
        assert torch.equal(utils.safe_get_full_fp32_param(parameter), master)
    with zero.GatheredParameters(given):
        assert torch.equal(model.norm.bias, weights["norm.bias"])
    train(engine, range(2, 3))
    assert engine.was_step_applied()
    engine.destroy()


def test_an_inner_contexts_value_that_an_outer_one_mends_is_kept() -> None:
    engine, weight = bf16_engine()
    expected = utils.safe_get_full_fp32_param(weight)
    expected[:3] = 1
    with zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        with zero.GatheredParameters(weight, modifier_rank=0):
            weight[:3] = torch.nan
        weight[:3] = 1
    assert torch.equal(utils.safe_get_full_fp32_param(weight), expected)
    engine.destroy()


REFUSED_ON_ALL_RANKS = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from small_models import config, engine_of, make, train
from sluice import utils, zero
rank, found = int(os.environ["RANK"]), []
for stage, wrong in ((1, "values"), (3, "values"), (3, "shape")):
    engine = engine_of(make(blocks=1), config("device", zero_optimization={"stage": stage}))
    train(engine, range(1))
    before = engine.module_state_dict()
    given = [engine.module.norm.bias, engine.module.blocks[0].norm.bias]
    try:
        with zero.GatheredParameters(given, modifier_rank=0), torch.no_grad():
            if rank == 0:
                given[0].fill_(1)
                if wrong == "values":
                    given[1].fill_(torch.nan)
                else:
                    given[1].data = torch.ones(3)
    except ValueError as error:
        found.append(str(error))
    after = engine.module_state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    train(engine, range(1, 2))
    found.append(utils.safe_get_full_fp32_param(given[0]).sum().item())
    engine.destroy()
open(os.path.join(sys.argv[2], str(rank)), "w").write(json.dumps(found))
"""


def test_a_change_that_cannot_be_set_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    first, second = run_text(REFUSED_ON_ALL_RANKS, tmp_path)
    assert len(first) == 6
    assert first == second
