"""sluice.utils: shards of states, the log, marks of modules, loaders that repeat."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from forked import run_two_ranks
from small_models import Block, batch, config, engine_of, loss_of, make

from sluice import comm, utils

SCRIPT = Path(__file__).parent / "shards_script.py"


def test_two_ranks_have_shards_of_what_both_have(tmp_path: Path) -> None:
    run_two_ranks(SCRIPT, tmp_path)


def test_the_shard_of_a_process_alone_is_the_flat_tensor() -> None:
    engine = engine_of(make(blocks=1), config(gradient_accumulation_steps=2))
    weight = engine.module.blocks[0].up.weight
    ids, targets = batch(0)
    assert utils.safe_get_local_grad(weight) is None
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    gradient = utils.safe_get_local_grad(weight)
    assert gradient is not None
    assert gradient.shape == (weight.ds_numel,)
    assert torch.equal(gradient.view(weight.ds_shape), utils.safe_get_full_grad(weight))
    utils.safe_set_local_grad(weight, torch.zeros(weight.ds_numel))
    assert utils.safe_get_full_grad(weight).abs().max() == 0
    for shape in (weight.ds_shape, (weight.ds_numel,)):  # as many elements is enough
        utils.safe_set_local_fp32_param(weight, torch.full(shape, 0.5))
        utils.safe_set_local_optimizer_state(weight, torch.full(shape, 0.25), "exp_avg")
    assert torch.equal(utils.safe_get_local_fp32_param(weight), torch.full((weight.ds_numel,), 0.5))
    assert torch.equal(utils.safe_get_local_optimizer_state(weight, "exp_avg"), torch.full((weight.ds_numel,), 0.25))
    assert torch.equal(utils.safe_get_local_optimizer_state(weight, "fp32_param"), utils.safe_get_local_fp32_param(weight))
    with pytest.raises(ValueError, match="3 elements"):
        utils.safe_set_local_optimizer_state(weight, torch.zeros(3), "exp_avg")
    with pytest.raises(ValueError, match="no state 'momentum'"):
        utils.safe_get_local_optimizer_state(weight, "momentum")
    with pytest.raises(ValueError, match="no parameter of an engine"):
        utils.safe_get_local_fp32_param(torch.nn.Parameter(torch.zeros(2)))
    engine.destroy()


def test_before_there_are_ranks_everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert not comm.is_initialized()
    from sluice.utils.logging import log_dist, logger

    assert logger is utils.logger
    assert utils.logging.log_dist is utils.log_dist is log_dist
    with caplog.at_level(logging.INFO, logger="sluice"):
        utils.log_dist("for rank 1", ranks=[1])
        utils.log_dist("for no rank in particular", level=logging.WARNING)
        utils.log_dist("below the level", ranks=[0], level=logging.DEBUG)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "[Rank -1] for rank 1"),
        ("WARNING", "[Rank -1] for no rank in particular"),
    ]


class Pair(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(16), Block(16)


def test_leaf_modules_are_found_by_class_by_name_and_by_full_name() -> None:
    model = torch.nn.ModuleDict({"pair": Pair(), "last": torch.nn.Linear(16, 1)})
    pair = model["pair"]
    assert utils.get_z3_leaf_modules(model) == []
    for wanted in (Block, "Block", f"{Block.__module__}.Block"):
        assert utils.set_z3_leaf_modules(model, [wanted]) == [pair.first, pair.second]
        assert utils.get_z3_leaf_modules(model) == [pair.first, pair.second]
        assert utils.unset_z3_leaf_modules(model, [wanted]) == [pair.first, pair.second]
        assert utils.get_z3_leaf_modules(model) == []
    assert utils.set_z3_leaf_modules(model, [Pair, Block]) == [pair.first, pair.second, pair]  # inner ones first
    assert utils.unset_z3_leaf_modules(model, ["Pair"]) == [pair]
    assert utils.get_z3_leaf_modules(model) == [pair.first, pair.second]
    for change in (utils.set_z3_leaf_modules, utils.unset_z3_leaf_modules):
        with pytest.raises(ValueError, match="no module of the model"):
            change(model, [torch.nn.Conv2d])
        assert change(model, ["Conv2d"], raise_if_not_found=False) == []
    assert utils.unset_z3_leaf_modules(model, [Pair]) == [pair]  # it has no mark


def test_a_loader_repeats_what_can_be_iterated_again() -> None:
    loader = torch.utils.data.DataLoader(range(5), batch_size=2)
    endless = utils.RepeatingLoader(loader)
    assert iter(endless) is endless
    assert [next(endless).tolist() for _ in range(7)] == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4], [0, 1]]
    assert endless.loader is loader
    with pytest.raises(StopIteration):
        next(utils.RepeatingLoader([]))


def test_values_whose_sign_waits_are_taken_with_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1))
    model[0].weight = torch.nn.Parameter(torch.tensor([[0.5j]]).conj().imag)
    assert model[0].weight.is_neg()
    engine = engine_of(model, config(gradient_accumulation_steps=2))
    weight = model[0].weight
    assert utils.safe_get_full_fp32_param(weight).item() == -0.5
    engine.backward(engine(torch.ones(1, 1)).sum())
    engine.step()
    negative = torch.tensor([[1j]]).conj().imag
    assert negative.is_neg()
    utils.safe_set_full_grad(weight, negative)
    assert utils.safe_get_full_grad(weight).item() == -1
    utils.safe_set_full_fp32_param(weight, negative)
    assert utils.safe_get_full_fp32_param(weight).item() == -1
    utils.safe_set_full_optimizer_state(weight, negative, "exp_avg")
    assert utils.safe_get_full_optimizer_state(weight, "exp_avg").item() == -1
    utils.safe_set_local_fp32_param(weight, 2 * torch.ones(1))
    utils.safe_set_local_fp32_param(weight, negative)
    assert utils.safe_get_local_fp32_param(weight).item() == -1
    engine.destroy()
