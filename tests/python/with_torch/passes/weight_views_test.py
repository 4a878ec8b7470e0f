"""Tensors that show a model's weights when the weights are no longer there."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from small_models import config, engine_of, loss_of, make
from torch import nn

import sluice
from sluice import zero

WIDTH = 8


class Positions(nn.Module):
    """A unit whose output is a view of its weight."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Parameter(torch.randn(1, 64, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        if self.how == "in a dict":
            return {"table": [self.table[:, : x.shape[1]]]}
        return self.table[:, : x.shape[1]]


class Placed(nn.Module):
    def __init__(self, how: str = "alone") -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(100, WIDTH), Positions(how)
        self.head = nn.Linear(WIDTH, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        places = self.positions(x)
        return self.head(x + (places["table"][0] if isinstance(places, dict) else places))


@pytest.mark.parametrize("how", ["alone", "in a dict"])
def test_a_unit_may_return_a_view_of_its_weight(how: str) -> None:
    model = make(Placed, how=how)
    plain = copy.deepcopy(model)
    plain_optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.0)
    engine = engine_of(model, config(optimizer={"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}}, gradient_clipping=0.0))
    ids, targets = torch.randint(100, (2, 9)), torch.randint(100, (2, 9))
    for _ in range(3):
        expected = loss_of(plain(ids), targets)
        expected.backward()
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        loss = loss_of(engine(ids), targets)
        engine.backward(loss)
        engine.step()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(engine(ids), plain(ids), rtol=1e-3, atol=1e-4)
    engine.destroy()


@pytest.mark.parametrize("device", ["none", "cpu", "nvme"])
def test_what_was_taken_inside_gathered_parameters_stays(device: str, tmp_path: Any) -> None:
    model = make()
    values = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_of(model, config(device, tmp_path))
    with zero.GatheredParameters(engine.module):
        with zero.GatheredParameters(engine.module):
            taken = {name: value.data.cpu() for name, value in engine.module.named_parameters()}
        whole = engine.module.state_dict()
    first = taken["norm.weight"]
    for name, value in taken.items():
        assert torch.equal(value, values[name]) and torch.equal(whole[name], values[name]), name
    first.add_(5)  # memory of its own, and of no other parameter
    ids = torch.zeros(1, 4, dtype=torch.long)
    loss = loss_of(engine(ids), ids)
    engine.backward(loss)
    engine.step()
    assert torch.equal(taken["head.weight" if "head.weight" in taken else "embedding.weight"], values["embedding.weight"])
    with zero.GatheredParameters(engine.module.norm.weight):
        now = engine.module.norm.weight.data
    assert not torch.equal(now, first)
    assert not torch.equal(now, values["norm.weight"])  # the step has changed it
    engine.destroy()


def test_a_tensor_stays_beside_a_parameter_that_was_given_other_memory() -> None:
    engine = engine_of(nn.Sequential(nn.Linear(WIDTH, WIDTH)))
    layer = engine.module[0]
    with zero.GatheredParameters(layer.weight, modifier_rank=0):
        taken = layer.bias.data
        expected = taken.clone()
    assert torch.equal(taken, expected)
    with zero.GatheredParameters(layer.parameters()):
        layer.weight.data, taken = layer.weight.data.clone(), layer.bias.data
    assert torch.equal(taken, expected)
    engine.destroy()


class Kept(nn.Module):
    """A frozen unit that hands an intermediate result out through an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.between = self.first(x)
        return self.second(self.between)


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made, self.blocks = nn.Linear(WIDTH, WIDTH), nn.ModuleList([Kept()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.blocks[0](self.made(x))
        return self.blocks[0].between.square().mean()


def test_a_gradient_through_frozen_weights_that_are_not_there_is_no_zero() -> None:
    engine = engine_of(make(Features))
    engine.backward(engine(torch.randn(4, WIDTH)))
    engine.step()
    assert engine.skipped_steps == 1
    engine.destroy()


def test_a_frozen_adapter_may_be_switched_on_where_no_graph_is_recorded() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[1].requires_grad_(False)
    engine, *_ = sluice.initialize(model=model, config=config())
    model[1].requires_grad_(True)
    with torch.no_grad():
        engine(torch.randn(2, WIDTH))
    with pytest.raises(ValueError, match="was frozen at initialize"):
        engine(torch.randn(2, WIDTH))
    model[1].requires_grad_(False)
    engine(torch.randn(2, WIDTH))
    engine.destroy()


@dataclasses.dataclass
class Held:
    table: torch.Tensor


class HeldPositions(Positions):
    copies = False

    def forward(self, x: torch.Tensor) -> Any:
        table = super().forward(x)
        return Held(table.clone() if self.copies else table)


class PlacedInObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions, self.head = nn.Embedding(100, WIDTH), HeldPositions("alone"), nn.Linear(WIDTH, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        return self.head(x + self.positions(x).table)


def test_a_view_of_a_weight_inside_an_object_is_refused() -> None:
    model = make(PlacedInObject)
    plain = copy.deepcopy(model)
    engine = engine_of(model)
    ids, targets = torch.randint(100, (2, 9)), torch.randint(100, (2, 9))
    with pytest.raises(ValueError, match=r"positions returns a view of a weight inside a Held, .* clone\(\)"):
        engine(ids)
    model.positions.copies = True
    loss = loss_of(engine(ids), targets)
    torch.testing.assert_close(loss, loss_of(plain(ids), targets))
    engine.backward(loss)
    engine.step()
    engine.destroy()
