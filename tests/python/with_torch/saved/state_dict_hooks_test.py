"""State dict hooks that a script sets on a model before its engine, and modules that save under names of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks_test import run_text
from small_models import Tied, config, engine_of, make
from torch import nn

import sluice


def rename(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[f"{prefix}net.{key[len(prefix) :]}"] = state_dict.pop(key)


def widen(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    state_dict[prefix + "weight"] = state_dict[prefix + "weight"].double()


def add(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    state_dict[prefix + "copy"] = module.norm.weight.detach()  # of what is empty between passes


class Own(nn.Linear):
    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "matrix"] = self.weight if keep_vars else self.weight.detach()
        destination[prefix + "half"] = self.weight if keep_vars else self.weight.detach().half()
        destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()


def with_own(model: Any) -> None:
    model.blocks[0].up = Own(64, 256)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "renamed": lambda model: model.register_state_dict_post_hook(rename),
    "renamed in a module": lambda model: model.norm.register_state_dict_post_hook(rename),
    "another data type": lambda model: model.norm.register_state_dict_post_hook(widen),
    "one more": lambda model: model.register_state_dict_post_hook(add),
    "names of its own": with_own,
}


def assert_equal(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        assert type(mine[name]) is torch.Tensor
        assert mine[name].dtype == value.dtype
        assert torch.equal(mine[name], value), name


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_hooks_of_a_model_see_its_values_under_an_engine(change: Callable[[Any], Any], tmp_path: Path) -> None:
    model = make(blocks=1)
    change(model)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_of(model)
    assert_equal(engine.module_state_dict(), expected)
    if "copy" not in expected:  # else the script's hook itself has put an empty one there, after all others
        assert_equal(model.state_dict(), expected)
    engine.save_16bit_model(str(tmp_path))
    assert_equal(torch.load(tmp_path / "pytorch_model.bin"), expected)
    engine.destroy()


def test_frozen_parameters_are_left_out_under_any_name() -> None:
    model: Any = make(Tied, blocks=1)
    with_own(model)
    model.blocks[0].up.requires_grad_(False)
    engine = engine_of(model, config())
    found = engine.module_state_dict(exclude_frozen_parameters=True)
    assert {name for name in found if ".up." in name} == set()
    assert found.keys() == {name for name in engine.module_state_dict() if ".up." not in name}
    engine.destroy()


GATHERED = """
import os, sys, weakref
import torch
sys.path.insert(0, sys.argv[1])
from small_models import Tied, config, engine_of, make

rank = int(os.environ["RANK"])


def join(module, state_dict, prefix, metadata):  # computes with values on every rank
    state_dict[prefix + "joined"] = torch.cat([state_dict[prefix + "up.weight"].T, state_dict[prefix + "down.weight"]])


def fold(module, state_dict, prefix, metadata):  # changes values in place on every rank, as one that merges adapters
    state_dict[prefix + "weight"].mul_(2)
    state_dict[prefix + "bias"] += torch.arange(64.0)


model = make(Tied, blocks=2)
model.blocks[0].register_state_dict_post_hook(join)
expected = {name: value.clone() for name, value in model.state_dict().items()}
fold(None, expected, "norm.", None)
model.norm.register_state_dict_post_hook(fold)  # not before: it would change the parameters themselves
engine = engine_of(model, config())
made, values_of = [], engine.loop.parameters


def parameters(names):
    values = values_of(names)
    made.extend(map(weakref.ref, values))
    return values


engine.loop.parameters = parameters
found = engine._consolidated_16bit_state_dict()
if rank == 0:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())
else:
    assert found is None
    assert made and not any(value() is not None for value in made)
engine.save_16bit_model(sys.argv[2])
engine.destroy()
open(os.path.join(sys.argv[2], str(rank)), "w").write("null")
"""


def test_other_ranks_than_the_first_keep_no_weights_of_a_file(tmp_path: Path) -> None:
    run_text(GATHERED, tmp_path)
    expected = {name: value.clone() for name, value in make(Tied, blocks=2).state_dict().items()}
    expected["norm.weight"] *= 2
    expected["norm.bias"] += torch.arange(64.0)
    saved = torch.load(tmp_path / "pytorch_model.bin")
    assert all(torch.equal(saved[name], value) for name, value in expected.items())


ON_ONE_RANK = """
import os, sys
import torch
sys.path.insert(0, sys.argv[1])
from small_models import Tied, config, engine_of, make


class Counts(torch.nn.BatchNorm1d):
    def get_extra_state(self):  # a state dict inside the state dict, which asks for no value
        return list(self.inside.state_dict()) if os.environ["RANK"] == "0" else []

    def set_extra_state(self, state):
        pass


model = make(Tied, blocks=2)
for block in model.blocks:
    block.counts = Counts(4, affine=False)
    block.counts.inside = torch.nn.BatchNorm1d(4, affine=False)
expected = {name: value for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
expected = {name: value.clone() for name, value in expected.items()}
engine = engine_of(model, config())
found = engine.module.state_dict()
assert all(torch.equal(found[name], value) for name, value in expected.items())
part = engine.module.blocks[0].up.state_dict()  # all ranks read its unit
assert torch.equal(part["weight"], expected["blocks.0.up.weight"])
if os.environ["RANK"] == "0":
    engine.module.blocks[0].counts.inside.state_dict()
part = engine.module.blocks[0].down.state_dict(prefix="down.")
assert torch.equal(part["down.weight"], expected["blocks.0.down.weight"])
engine.destroy()
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write("null")
"""


def test_a_state_dict_without_values_is_made_on_one_rank_alone(tmp_path: Path) -> None:
    run_text(ON_ONE_RANK, tmp_path)


def test_modules_without_parameters_are_copied_under_an_engine() -> None:
    model: Any = make(Tied, blocks=1)
    model.blocks[0].act = torch.nn.ReLU()
    engine = engine_of(model)
    assert isinstance(copy.deepcopy(model.blocks[0].act), torch.nn.ReLU)
    engine.destroy()


@pytest.mark.parametrize("options", [{}, {"strict": False}, {"assign": True}])
def test_loading_into_empty_modules_says_how_it_is_done(options: dict[str, bool]) -> None:
    model = make(blocks=1)
    values = {name: value.clone() + 1 for name, value in model.state_dict().items()}
    engine = engine_of(model)
    with pytest.raises(ValueError, match=r"parameter [\w.]+: an engine's parameters are empty.*GatheredParameters"):
        model.load_state_dict(values, **options)
    model.load_state_dict({}, strict=False)
    with sluice.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        model.load_state_dict(values)
    assert_equal(engine.module_state_dict(), values)
    engine.destroy()
