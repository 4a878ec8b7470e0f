"""Backwards that are called inside a unit's own forward, as of blocks with losses of their own, beside plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MEMORY_OF_ITS_OWN, config, data, engine_of
from torch import nn
from torch.nn.functional import linear

import sluice
from sluice.utils import safe_get_full_grad

SGD = {"type": "SGD", "params": {"lr": 0.1}}


class Local(nn.Module):
    """Trains by a loss of its own, and by that of the model where ``passes_on``."""

    def __init__(self, passes_on: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.passes_on = nn.Linear(8, 8), nn.Linear(8, 8), passes_on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(self.up(x if self.passes_on else x.detach()).tanh())
        if torch.is_grad_enabled():
            (y - 1).square().mean().backward(retain_graph=self.passes_on)
        return y if self.passes_on else y.detach()


class Greedy(nn.Module):
    def __init__(self, passes_on: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Local(passes_on), Local(passes_on)])
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Joined(Greedy):
    """Its blocks have gradients of their losses and of the model's."""

    def __init__(self) -> None:
        super().__init__(passes_on=True)


class OwnScale(nn.Module):
    """Two backwards inside the forward reach a parameter of the model itself, and the model's backward does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks[:2]:
            x = block(x.detach()) * self.scale
            if torch.is_grad_enabled():
                x.square().mean().backward()
        return self.blocks[2](x.detach()) * self.scale


class Borrowing(nn.Module):
    """A backward inside the forward reaches a weight of another module, which the model uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = linear(x, self.table.weight)
        if torch.is_grad_enabled():
            y.square().mean().backward()
        return self.last(linear(x + y.detach(), self.table.weight))


def make(kind: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = kind()
    return model, copy.deepcopy(model)


def assert_close_weights(values: dict[str, torch.Tensor], plain: nn.Module) -> None:
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(values[name], value, rtol=1e-5, atol=1e-6)


MODELS = [Greedy, Joined, OwnScale, Borrowing]
KEYS: dict[str, dict[str, Any]] = {"host": {}, "own memory": {"sluice": MEMORY_OF_ITS_OWN}}


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", MODELS)
def test_gradients_of_backwards_inside_a_forward_train(kind: type[nn.Module], keys: str) -> None:
    model, plain = make(kind)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    engine = engine_of(model, config(optimizer=SGD, **KEYS[keys]))
    for number in range(3):
        expected = plain(data(number)).square().mean()
        expected.backward()
        loss = engine(data(number)).square().mean()
        engine.backward(loss)
        torch.testing.assert_close(loss, expected)
        for mine, theirs in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(safe_get_full_grad(mine), theirs.grad, rtol=1e-5, atol=1e-6)
        optimizer.step()
        optimizer.zero_grad()
        engine.step()
    assert_close_weights(engine.module_state_dict(), plain)
    engine.destroy()


@pytest.mark.parametrize("kind", MODELS)
def test_they_add_up_over_micro_batches_on_a_drive(kind: type[nn.Module], tmp_path: Path) -> None:
    model, plain = make(kind)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1)
    ours = sluice.offload(model, config("nvme", tmp_path, optimizer=SGD, gradient_clipping=0))
    for step in range(2):
        for number in range(2):
            for each in (plain, model):
                each(data(2 * step + number)).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
        ours.step()
    assert_close_weights(ours.model_state_dict(), plain)
    ours.close()


def test_a_backward_inside_a_forward_alone_is_a_step() -> None:
    """No output of a unit has a gradient in it."""
    model, plain = make(lambda: nn.ModuleList([Local()]))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    engine = engine_of(model, config(optimizer=SGD))
    for number in range(2):
        plain[0](data(number))
        optimizer.step()
        optimizer.zero_grad()
        model[0](data(number))
        engine.step()
    assert_close_weights(engine.module_state_dict(), plain)
    engine.destroy()


class Asking(nn.Module):
    """Asks for the gradient of its weight, which it keeps from the step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            (gradient,) = torch.autograd.grad(self.inner(x).square().mean(), self.inner.weight)
            self.norm = gradient.norm()
        return self.inner(x)


def test_gradients_that_a_forward_asks_for_are_not_in_the_step() -> None:
    model, plain = make(lambda: nn.Sequential(Asking(), nn.Linear(8, 8)))
    engine = engine_of(model)
    engine.backward(engine(data()).mean())
    plain(data()).mean().backward()
    torch.testing.assert_close(model[0].norm, plain[0].norm)
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(safe_get_full_grad(mine), theirs.grad)
    engine.destroy()


def test_a_forward_shows_no_gradient_of_a_backward_that_has_ended() -> None:
    class Looking(Local):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            self.seen = [parameter.grad for parameter in self.parameters()]
            return y

    model = nn.ModuleList([Looking()])
    optimizer = sluice.offload(model, config())
    model[0](data())
    assert model[0].seen == [None] * 4
    optimizer.close()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_backward_of_a_backward_inside_a_forward_is_refused() -> None:
    class Twice(Local):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.up(x).square().mean().backward(create_graph=True)
            return self.down(x)

    model = nn.ModuleList([Twice()])
    optimizer = sluice.offload(model, config())
    with pytest.raises(ValueError, match="create_graph=True"):
        model[0](data())
    optimizer.close()


def test_such_a_backward_in_fp16_needs_the_loss_scale() -> None:
    model = nn.ModuleList([Local()])
    engine = engine_of(model, config(fp16={"enabled": True, "initial_scale_power": 10}))
    model[0](data().half())
    with pytest.raises(ValueError, match=r"without the loss scale of fp16, 1024"):
        engine.step()
    engine.destroy()


@pytest.mark.parametrize("penalty_first", [True, False])
def test_a_penalty_on_gathered_weights_is_in_the_step(penalty_first: bool) -> None:
    model, plain = make(lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    (plain(data()).square().mean() + plain[1].weight.square().sum()).backward()
    optimizer.step()
    engine = engine_of(model, config(optimizer=SGD))

    def penalize() -> None:
        with sluice.zero.GatheredParameters(model[1].weight):
            model[1].weight.square().sum().backward()
            assert model[1].weight.grad is None

    if penalty_first:
        penalize()
    engine.backward(engine(data()).square().mean())
    if not penalty_first:
        penalize()
    engine.step()
    assert_close_weights(engine.module_state_dict(), plain)
    engine.destroy()


class Showing(nn.Module):
    """A unit that shows a tensor otherwise than as its output."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.full((8,), 0.5)), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shown = self.scale.exp()
        return self.inner(x)


@pytest.mark.parametrize("start", ["engine", "loss"])
def test_a_gradient_outside_of_its_units_backward_is_refused_before_it_is_lost(start: str) -> None:
    model, plain = make(lambda: nn.Sequential(Showing(), nn.Linear(8, 8)))
    engine = engine_of(model, config(optimizer=SGD))
    output = model(data())
    loss = (model[0].shown * output.detach()).square().mean()
    with pytest.raises(RuntimeError, match=r"0\.scale has a gradient from outside its unit's backward.* of unit 0 are not here.* Return it"):
        engine.backward(loss) if start == "engine" else loss.backward()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(data()).square().mean().backward()
    optimizer.step()
    engine.backward(engine(data()).square().mean())  # it goes on
    engine.step()
    assert_close_weights(engine.module_state_dict(), plain)
    engine.destroy()
