"""Activation checkpointing over several units with frozen parameters, against plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from sluice import utils

WIDTH = 32


class Adapted(nn.Module):
    """A frozen block with trained adapters beside its Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.base = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        for parameter in [*self.norm.parameters(), *self.base.parameters()]:
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + torch.tanh(self.base(y)) + self.up(self.down(y))


class Model(nn.Module):
    """``how``: which blocks are computed again together."""

    def __init__(self, how: str, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList([Adapted() for _ in range(4)])
        self.head = nn.Linear(WIDTH, 8)
        self.how, self.reentrant = how, reentrant

    def _nested(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.how == "sequential":
            x = checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=self.reentrant)
        elif self.how == "nested":
            x = checkpoint(self._nested, x, use_reentrant=self.reentrant)
        elif self.how == "once more":
            again = nn.Sequential(*self.blocks, self.blocks[0])
            x = checkpoint(again, x, use_reentrant=self.reentrant)
        else:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the outer checkpoint, which records no graph
@pytest.mark.parametrize("tier", ["device", "cpu"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("units", [None, ["LayerNorm", "Linear"]])
@pytest.mark.parametrize("how", ["each", "sequential", "nested", "once more"])
def test_gradients_are_those_of_pytorch(how: str, units: Any, reentrant: bool, tier: str) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Model(how, reentrant))
    plain, model = models
    x = torch.randn(2, 3, 8)
    expected = plain(x).square().mean()
    expected.backward()
    engine = engine_of(model, config(tier), units=units)
    loss = engine(x).square().mean()
    engine.backward(loss)
    assert torch.equal(loss, expected)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            mine, theirs = utils.safe_get_full_grad(parameter), plain.get_parameter(name).grad
            assert mine is not None and theirs is not None and torch.equal(mine, theirs), name
    engine.step()
    assert model.get_parameter("blocks.0.base.weight").shape == torch.Size([0])
    engine.destroy()
