"""A client's optimizer and its groups, which an engine or a loop of one's own has taken over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config
from torch import nn

import sluice

Groups = list[dict[str, Any]]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))


def data(number: int) -> torch.Tensor:
    return torch.randn(2, 8, generator=torch.Generator().manual_seed(number))


def adamw(groups: Groups) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-2)


# How groups of a script come to their steps. Each returns the optimizer.
WAYS: dict[str, Callable[[nn.Module, Groups], Any]] = {
    "offload": lambda model, groups: sluice.offload(model, config(), optimizer=adamw(groups)),
    "optimizer": lambda model, groups: sluice.initialize(model=model, config=config(), optimizer=adamw(groups))[1],
    "model_parameters": lambda model, groups: sluice.initialize(model=model, config=config(), model_parameters=groups)[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_of_another_module_is_refused_unless_it_is_frozen(way: str) -> None:
    model, head = mlp(), nn.Linear(4, 3)
    groups: Groups = [{"params": [*model.parameters(), *head.parameters()]}]
    with pytest.raises(ValueError, match=r"parameter group 0 has a parameter that is not of the model .*number 4, of shape \[3, 4\]"):
        WAYS[way](model, groups)
    head.requires_grad_(False)
    optimizer = WAYS[way](model, groups)
    before = model.state_dict()
    head(model(data(0))).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before["0.weight"], model.state_dict()["0.weight"])


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_of_another_engine_is_refused(way: str) -> None:
    critic = mlp()
    kept = sluice.offload(critic, config())
    actor = mlp()
    with pytest.raises(ValueError, match=r"is not of the model .*of shape \[8, 8\]"):
        WAYS[way](actor, [{"params": [*actor.parameters(), *critic.parameters()]}])
    kept.close()


def test_a_parameter_in_two_groups_is_refused() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"parameter 2\.weight is in parameter groups 0 and 1"):
        WAYS["model_parameters"](model, [{"params": list(model.parameters())}, {"params": [model[2].weight]}])
