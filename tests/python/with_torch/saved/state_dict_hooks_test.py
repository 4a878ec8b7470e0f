"""State dict hooks that a script sets on a model before its engine, and modules that save under names of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Tied, config, engine_of, make
from torch import nn


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
