"""Callers change a unit's results in place, against plain PyTorch. A Linear's result of three dimensions is a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from sluice import utils

WIDTH, LENGTH = 8, 3
Forward = Callable[["Layers", torch.Tensor], torch.Tensor]


class Parts(nn.Module):
    """Returns views in a tuple and in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x), {"second": self.second(x)}


class InPlace(nn.Module):
    """Changes its input, and needs a weight for that."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(self.scale)


class Layers(nn.Module):
    """Units, and a weight and a bias of the model itself. ``how`` is the forward."""

    def __init__(self, how: Forward) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.nested = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5, inplace=True))
        self.parts, self.in_place = Parts(), InPlace()
        self.weight, self.bias = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH))
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, x)


def rectified(model: Layers, x: torch.Tensor) -> torch.Tensor:
    return model.down(nn.functional.relu(model.up(x), inplace=True))


def counted(model: Layers, x: torch.Tensor) -> torch.Tensor:
    y = model.up(x)
    y += 1
    return model.down(y)


def residual(model: Layers, x: torch.Tensor) -> torch.Tensor:
    z = model.down(model.up(x))
    z += x
    return z


def masked(model: Layers, x: torch.Tensor) -> torch.Tensor:
    return model.down(model.up(x)).masked_fill_(x > 0.5, 0.0)


def a_part(model: Layers, x: torch.Tensor) -> torch.Tensor:
    y = model.down(model.up(x))
    y[:, 1:] *= x[:, 1:]
    return y


def nested(model: Layers, x: torch.Tensor) -> torch.Tensor:
    return model.nested(model.nested(x))


def containers(model: Layers, x: torch.Tensor) -> torch.Tensor:
    first, others = model.parts(x)
    first.tanh_()
    others["second"].mul_(0.5).add_(first)
    return others["second"]


def changed_twice(model: Layers, x: torch.Tensor) -> torch.Tensor:
    y = model.down(model.up(x)).add_(1)
    model.in_place(y)
    y += 1
    return model.in_place(y)


def a_view_given(model: Layers, x: torch.Tensor) -> torch.Tensor:
    y = model.down(model.up(x)) + 1
    part = y[:, 1:]
    model.in_place(part)
    part += 1
    return y


def of_the_model(model: Layers, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, model.weight, model.bias).mul_(0.5)


def borrowed(model: Layers, x: torch.Tensor) -> torch.Tensor:
    first: Any = model.nested[0]
    return nn.functional.linear(x, first.weight, first.bias)


def checkpointed(model: Layers, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: rectified(model, y), x.requires_grad_(), use_reentrant=False).add_(1)


def reentrant(model: Layers, x: torch.Tensor) -> torch.Tensor:
    y = checkpoint(lambda y: rectified(model, y), x.requires_grad_(), use_reentrant=True)
    return checkpoint(model.nested, y, use_reentrant=True) + 1


FORWARDS = [
    rectified, counted, residual, masked, a_part, nested, containers, changed_twice, a_view_given, of_the_model, checkpointed,
    reentrant,
]  # fmt: skip


def gradients_of(
    model: Layers, call: Callable[..., Any], backward: Callable[..., Any], after: Callable[[torch.Tensor], Any]
) -> tuple[float, torch.Tensor]:
    """The loss and the gradient of the input. ``after``: what the script does with the model's result."""
    torch.manual_seed(1)
    x = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    result = call(x * 1.0)
    after(result)
    loss = result.square().mean()
    backward(loss)
    assert x.grad is not None
    return loss.item(), x.grad


def check(how: Forward, frozen: str = "", after: Callable[[torch.Tensor], Any] = lambda result: None, **backward: Any) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(Layers(how))
        for name, parameter in models[-1].named_parameters():
            parameter.requires_grad_(not frozen or frozen not in name)
    plain, model = models
    expected = gradients_of(plain, plain, lambda loss: [loss.backward(**backward) for _ in range(1 + len(backward))], after)
    engine = engine_of(model, config("cpu"))
    mine = gradients_of(model, engine, lambda loss: [loss.backward(**backward) for _ in range(1 + len(backward))], after)
    assert mine[0] == expected[0] and torch.equal(mine[1], expected[1])
    for name, parameter in model.named_parameters():
        theirs = plain.get_parameter(name).grad
        if theirs is not None:
            mine_of_it = utils.safe_get_full_grad(parameter)
            assert mine_of_it is not None and torch.equal(mine_of_it, theirs), name
    engine.step()
    engine.destroy()


@pytest.mark.parametrize("how", FORWARDS)
def test_gradients_are_those_of_pytorch(how: Forward) -> None:
    check(how)


@pytest.mark.parametrize("how", [rectified, residual, nested, containers])
@pytest.mark.parametrize("frozen", ["weight", "bias", "up", "down"])
def test_frozen_parameters_beside_it(how: Forward, frozen: str) -> None:
    check(how, frozen)


@pytest.mark.parametrize("how", [rectified, residual, of_the_model])
def test_a_graph_that_is_kept_goes_backward_twice(how: Forward) -> None:
    check(how, retain_graph=True)


@pytest.mark.parametrize("how", [residual, of_the_model, borrowed])
def test_the_models_own_result_may_be_changed(how: Forward) -> None:
    check(how, after=lambda result: result.add_(1))


class Halves(nn.Module):
    """Gets two views of one tensor, and returns a view of the first beside a result."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return first[:], second * self.scale


def test_a_graph_from_before_a_forward_lives_on_after_its_step() -> None:
    leaf = torch.ones(2, 2 * WIDTH, requires_grad=True)
    both = leaf * 1.0
    engine = engine_of(Halves(), config("cpu"))
    for _ in range(2):
        first, second = engine(both[:, :WIDTH], both[:, WIDTH:])
        (first + second).sum().backward(retain_graph=True)
        engine.step()
    engine.destroy()
