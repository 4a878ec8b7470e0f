"""Parameter groups in another order or with other members, and values that the first step fixes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config
from torch import nn

import sluice

CONFIG = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "bf16": {"enabled": False}}


def engine_of(swapped: bool) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    weights = {"params": [layer.weight for layer in model], "lr": 0.01, "weight_decay": 0.2}
    biases = {"params": [layer.bias for layer in model], "lr": 0.03, "weight_decay": 0.0}
    groups = [biases, weights] if swapped else [weights, biases]
    engine, optimizer, *_ = sluice.initialize(model=model, config=CONFIG, model_parameters=groups)
    return engine, optimizer


def train(engine: Any) -> None:
    engine.backward(engine(torch.ones(2, 8)).square().mean())
    engine.step()


def test_values_of_groups_do_not_change_places(tmp_path: Path) -> None:
    engine, _ = engine_of(swapped=False)
    train(engine)
    engine.save_checkpoint(str(tmp_path))
    engine.destroy()
    engine, optimizer = engine_of(swapped=True)
    with pytest.raises(ValueError, match=r"0\.weight in parameter group 0, and the optimizer in group 1"):
        engine.load_checkpoint(str(tmp_path))
    assert [group["lr"] for group in optimizer.param_groups] == [0.03, 0.01]
    engine.destroy()
    engine, optimizer = engine_of(swapped=False)
    engine.load_checkpoint(str(tmp_path))
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.03]
    assert all("param_names" not in group for group in optimizer.param_groups)
    with pytest.raises(ValueError, match="0.bias in parameter group 0, and the optimizer in group 1"):
        state = optimizer.state_dict()
        optimizer.load_state_dict({**state, "param_groups": state["param_groups"][::-1]})
    engine.destroy()


def swap_members(groups: list[Any]) -> None:
    groups[0]["params"], groups[1]["params"] = groups[1]["params"], groups[0]["params"]


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "reversed": lambda groups: groups.reverse(),
    "sorted": lambda groups: groups.sort(key=lambda group: -group["lr"]),
    "swapped members": swap_members,
    "moved member": lambda groups: groups[1]["params"].append(groups[0]["params"].pop()),
    "lost member": lambda groups: groups[0]["params"].pop(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_members_of_groups_do_not_change_after_the_start(change: Callable[[list[Any]], Any]) -> None:
    engine, optimizer = engine_of(swapped=False)
    train(engine)
    change(optimizer.param_groups)
    with pytest.raises(ValueError, match="parameter group 0 has other parameters than when the model was moved to its tiers"):
        train(engine)
    engine.destroy()


def test_the_order_inside_a_group_may_change() -> None:
    engine, optimizer = engine_of(swapped=False)
    optimizer.param_groups[0]["params"].reverse()
    train(engine)
    assert engine.global_steps == 1
    engine.destroy()


@pytest.mark.parametrize("of_client", [False, True])
def test_hooks_of_an_optimizers_state_run(of_client: bool, tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    client = torch.optim.AdamW(model.parameters(), lr=0.01)
    keys = {key: value for key, value in CONFIG.items() if key != "optimizer"}
    engine, optimizer, *_ = sluice.initialize(model=model, config=keys, optimizer=client)
    asked: Any = client if of_client else optimizer
    seen: list[str] = []
    asked.register_state_dict_pre_hook(lambda _: seen.append("before saving"))
    asked.register_state_dict_post_hook(lambda _, state: {**state, "note": "of a script"})
    asked.register_load_state_dict_pre_hook(lambda _, state: seen.append(state.pop("note")))
    asked.register_load_state_dict_post_hook(lambda _: seen.append("after loading"))
    state = asked.state_dict()
    asked.load_state_dict(state)
    expected = ["before saving", "of a script", "after loading"]
    assert seen == expected
    assert state["note"] == "of a script"
    train(engine)
    engine.save_checkpoint(str(tmp_path))
    engine.load_checkpoint(str(tmp_path))
    assert seen == 2 * expected
    engine.destroy()


def test_a_formula_does_not_change_after_the_start() -> None:
    engine, optimizer = engine_of(swapped=False)
    train(engine)
    optimizer.param_groups[1]["maximize"] = True
    engine.backward(engine(torch.ones(2, 8)).square().mean())
    with pytest.raises(ValueError, match="parameter group 1 has maximize=True, which is fixed when the model is moved"):
        engine.step()
    optimizer.param_groups[1]["maximize"] = False
    engine.step()
    assert engine.global_steps == 2
    with pytest.raises(AttributeError, match="gradient_clipping"):
        optimizer.clip_grad = 0.5
    engine.destroy()


def test_a_step_without_a_backward_is_named(caplog: pytest.LogCaptureFixture) -> None:
    engine, _ = engine_of(swapped=False)
    train(engine)
    assert "backward" not in caplog.text
    engine.step()
    assert "step 2 has no backward before it" in caplog.text
    caplog.clear()
    train(engine)
    assert "backward" not in caplog.text
    engine.destroy()


def test_a_step_that_fails_is_not_said_to_have_no_backward(caplog: pytest.LogCaptureFixture) -> None:
    engine, optimizer = engine_of(swapped=False)
    engine.backward(engine(torch.ones(2, 8)).square().mean())
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="-1"):
        engine.step()
    assert "has no backward before it" not in caplog.text
    engine.destroy()
