"""Gradients of a unit's inputs, and hooks on them, as in plain PyTorch: an input that it does not use has none."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, data, engine_of
from torch import nn

import sluice
from sluice.utils import safe_get_full_grad

SGD = {"type": "SGD", "params": {"lr": 0.1}}


class TakesTwo(nn.Module):
    """A unit that uses its second input only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, bias: torch.Tensor, uses_bias: bool = False) -> torch.Tensor:
        return self.inner(x) + bias if uses_bias else self.inner(x)


class WithDistance(nn.Module):
    """Its block does not use a distance of 0, whose root has an infinite derivative: 0 times that is NaN."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.side = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = nn.ModuleList([TakesTwo()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = self.side(x)
        distance = (side - side.detach()).square().sum(-1, keepdim=True).sqrt()
        return self.blocks[0](self.first(x), distance)


def test_what_made_an_unused_input_gets_no_gradient() -> None:
    model = WithDistance()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    engine = engine_of(model, config(optimizer=SGD))
    for number in range(3):
        expected = plain(data(number)).square().mean()
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = engine(data(number)).square().mean()
        engine.backward(loss)
        engine.step()
        torch.testing.assert_close(loss, expected)
    assert engine.skipped_steps == 0
    for name, value in engine.module_state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    engine.destroy()


def test_an_unused_leaf_has_no_gradient() -> None:
    model = nn.ModuleList([TakesTwo()])
    optimizer = sluice.offload(model, config())
    x, bias = data(0).requires_grad_(), data(1).requires_grad_()
    model[0](x, bias).sum().backward()
    assert x.grad is not None
    assert bias.grad is None
    model[0](x, bias, uses_bias=True).sum().backward()
    torch.testing.assert_close(bias.grad, torch.ones(4, 8))
    assert torch.autograd.grad(model[0](x, bias).sum(), bias, allow_unused=True) == (None,)
    optimizer.close()


@pytest.mark.parametrize("count", [1, 2])
def test_a_gradient_of_an_input_begins_no_step(count: int) -> None:
    batches = [(data(number), data(5)) for number in range(count)]
    loss_of = torch.nn.functional.mse_loss

    def trained(asks_for_input: bool) -> tuple[float, dict[str, torch.Tensor]]:
        torch.manual_seed(0)
        engine = engine_of(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), config(gradient_accumulation_steps=count))
        for _ in range(2):
            if asks_for_input:
                x = batches[0][0].clone().requires_grad_()
                (gradient,) = torch.autograd.grad(loss_of(engine(x), batches[0][1]), x)
                assert gradient.abs().sum() > 0
            engine.train_batch(iter(batches), loss_of)
        norm, weights = engine.get_global_grad_norm(), engine.module_state_dict()
        loss_of(engine(batches[0][0]), batches[0][1]).backward()
        with pytest.raises(ValueError, match=f"one has begun, with 1 of {count} micro-batches"):
            engine.train_batch(iter(batches), loss_of)
        engine.destroy()
        return norm, weights

    norm, weights = trained(asks_for_input=False)
    norm_beside, weights_beside = trained(asks_for_input=True)
    assert norm_beside == norm
    assert all(torch.equal(weights_beside[name], weights[name]) for name in weights)


class GivesNone(torch.autograd.Function):
    """Its input has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:  # type: ignore[override]
        return None


class View(nn.Module):
    """A unit that returns a view of its input, and a product with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[:, :4], x * self.weight


def test_a_gradient_of_none_of_a_view_stays_none() -> None:
    model = nn.ModuleList([View()])
    optimizer = sluice.offload(model, config())
    x = data().requires_grad_()
    view, _ = model[0](x.square())
    GivesNone.apply(view).sum().backward()
    assert x.grad is None
    optimizer.close()


class Split(nn.Module):
    """The first of two layers: the second uses only one of what this one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(x)
        return y, (y - y.detach()).square().sum(-1, keepdim=True).sqrt()


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TakesTwo()

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.inner(*pair)


def test_an_unused_input_of_a_layer_has_no_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Split(), Join())
    plain = copy.deepcopy(model)
    plain(data()).square().mean().backward()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    optimizer.step()
    engine = engine_of(model, config(optimizer=SGD))
    engine.train_batch(iter([(data(), None)]), lambda output, _: output.square().mean(), by_layer=True)
    for name, value in engine.module_state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name])
    engine.destroy()


class Hooking(nn.Module):
    """Registers with its input what ``register`` does."""

    def __init__(self, register: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.register, self.seen = nn.Linear(8, 8), register, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            self.seen.append((x, self.register(x)))
        return self.inner(x)


class Residual(nn.Module):
    """The caller of its blocks uses their inputs too."""

    def __init__(self, register: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Hooking(register), nn.Sequential(Hooking(register), nn.Tanh())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return h


def both(register: Callable[[torch.Tensor], Any]) -> tuple[nn.Module, nn.Module]:
    """Under an engine, and plain."""
    return Residual(register), Residual(register)


def seen_in(model: nn.Module) -> list[tuple[torch.Tensor, Any]]:
    return model.blocks[0].seen + model.blocks[1][0].seen


def assert_close_gradients(model: nn.Module, plain: nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(safe_get_full_grad(mine), theirs.grad)


def test_a_hook_of_a_unit_on_its_input_changes_the_whole_gradient() -> None:
    model, plain = both(lambda x: (x.register_hook(lambda g: g * 0.1), x.register_hook(lambda g: g + 1)))
    optimizer = sluice.offload(model, config())
    for each in (model, plain):
        each(data()).square().mean().backward()
    assert_close_gradients(model, plain)
    optimizer.close()


def test_such_a_hook_can_be_removed() -> None:
    model, plain = both(lambda x: x.register_hook(lambda g: g * 0.1))
    optimizer = sluice.offload(model, config())
    for each in (model, plain):
        loss = each(data()).square().mean()
        seen_in(each)[0][1].remove()
        loss.backward()
    assert_close_gradients(model, plain)
    optimizer.close()


def test_a_retained_gradient_of_an_input_is_the_whole_one() -> None:
    model, plain = both(lambda x: x.retain_grad())
    optimizer = sluice.offload(model, config())
    for each in (model, plain):
        loss = each(data()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)  # adds to it
        seen_in(each)[1][0].grad = None
        loss.backward()
    for (mine, _), (theirs, _) in zip(seen_in(model), seen_in(plain)):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert_close_gradients(model, plain)
    optimizer.close()


def test_a_forward_hook_that_is_there_before_sees_the_whole_gradient() -> None:
    model, plain = both(lambda x: None)
    kept: list[torch.Tensor] = []

    def retain(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        args[0].retain_grad()
        kept.append(args[0])

    for each in (model, plain):
        each.blocks[0].register_forward_hook(retain)
    optimizer = sluice.offload(model, config())
    for each in (model, plain):
        each(data()).square().mean().backward()
    torch.testing.assert_close(kept[0].grad, kept[1].grad)
    optimizer.close()


def test_hooks_on_inputs_keep_no_graph_alive() -> None:
    model, _ = both(lambda x: (x.retain_grad(), x.register_hook(lambda g: None)))
    optimizer = sluice.offload(model, config())
    output = model(data())  # no backward follows
    kept = [weakref.ref(x) for x, _ in seen_in(model)]
    for block in (model.blocks[0], model.blocks[1][0]):
        block.seen.clear()
    del output
    gc.collect()
    assert [ref() for ref in kept] == [None, None]
    optimizer.close()
