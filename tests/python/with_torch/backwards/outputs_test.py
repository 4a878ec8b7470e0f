"""Outputs of an engine with several micro-batches: of any kind, and without surprises for what holds them."""

from __future__ import annotations

import copy
import dataclasses
import gc
import logging
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn

from sluice import utils


class Returning(nn.Module):
    def __init__(self, returned: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        return self.returned(self.linear(x), x)


def engine_with(returned: Callable[[torch.Tensor, torch.Tensor], Any], micro_batches: int = 2) -> Any:
    torch.manual_seed(0)
    return engine_of(Returning(returned), config("device", gradient_accumulation_steps=micro_batches))


X = torch.arange(8.0).view(2, 4)


@pytest.mark.parametrize("returned", [lambda y, x: (y, x), lambda y, x: (y, x[:, :2]), lambda y, x: [0, x.view(-1)]])
def test_an_argument_that_is_returned_refuses_a_change_in_place(returned: Callable[[Any, Any], Any]) -> None:
    """The graph of the caller's tensor would not know of it."""
    engine = engine_with(returned)
    encoded = nn.Linear(4, 4)(X)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        engine(encoded)[1].mul_(2)
    engine.destroy()


def forces(y: torch.Tensor, x: torch.Tensor) -> Any:
    return {"energy": y.sum(), "x": x}


class Potential(Returning):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            return super().forward(x.detach().requires_grad_())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_may_compute_with_gradients_where_its_caller_has_none(mode: Any) -> None:
    torch.manual_seed(0)
    model = Potential(forces)
    plain = copy.deepcopy(model)
    engine = engine_of(model, config("device", gradient_accumulation_steps=2))
    with mode():
        energy, expected = engine(X)["energy"], plain(X)["energy"]
    assert torch.equal(energy, expected)
    assert energy.requires_grad == expected.requires_grad
    engine.destroy()


class Link:
    def __init__(self, value: torch.Tensor) -> None:
        self.value, self.after = value, None


def chain(y: torch.Tensor, x: torch.Tensor) -> Any:
    links: list[Any] = [Link(y * number) for number in range(11)]
    for before, after in zip(links, links[1:]):
        before.after = after
    return links


def nested(y: torch.Tensor, x: torch.Tensor) -> Any:
    found: Any = [y]
    for _ in range(2000):
        found = [found]
    return found


class OfAttributes(dict[str, Any]):
    __slots__ = ()
    __getattr__ = dict.__getitem__


class Refusing(list[Any]):
    def __setitem__(self, *changed: Any) -> None:
        raise AttributeError("this is not to be changed")


def innermost(found: Any) -> torch.Tensor:
    while isinstance(found, list):
        found = found[0]
    return found


@pytest.mark.parametrize(
    "returned, one_of",
    [
        (chain, lambda output: output[9].value / 9),
        (nested, innermost),
        (lambda y, x: OfAttributes(y=y), lambda output: output.y),
        (lambda y, x: Refusing([y]), lambda output: output[0]),
        (lambda y, x: frozenset([y]), lambda output: next(iter(output))),
    ],
    ids=["a chain that is in a list too", "a list of many", "attributes that are keys", "a list that refuses", "a frozenset"],
)
def test_the_gradient_is_divided_in(returned: Any, one_of: Callable[[Any], torch.Tensor], caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(returned)
    one_of(engine(X)).sum().backward()
    gradient = utils.safe_get_full_grad(engine.module.linear.bias)
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.ones(4))  # 2 rows, of 2 micro-batches
    assert not caplog.records
    engine.destroy()


@pytest.mark.parametrize("returned", [lambda y, x: {"y": y}.values(), lambda y, x: {y: 1}, lambda y, x: {"y": y}.items()])
def test_a_gradient_that_is_not_divided_is_a_warning(returned: Any, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(returned)
    (found,) = engine(X)
    (found if isinstance(found, torch.Tensor) else found[1]).sum().backward()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "not divided by the 2 micro-batches" in line
    engine.destroy()


@dataclasses.dataclass
class Out:
    y: torch.Tensor


@pytest.mark.parametrize("kind", [Out, lambda y: types.MappingProxyType({"y": y}), lambda y: types.SimpleNamespace(y=y)])
def test_an_output_goes_with_its_last_name(kind: Callable[[torch.Tensor], Any]) -> None:
    """Without the collector of cycles, which would leave activations in memory for steps."""
    engine = engine_with(lambda y, x: kind(y))
    output = engine(X)
    y = output["y"] if isinstance(output, types.MappingProxyType) else output.y
    kept = weakref.ref(y)
    gc.disable()
    try:
        del output, y
        assert kept() is None
    finally:
        gc.enable()
    engine.destroy()


def test_objects_that_know_each_other_are_searched_once() -> None:
    links: list[Any] = [types.SimpleNamespace() for _ in range(200)]
    for link in links:
        link.others = links
    engine = engine_with(lambda y, x: types.SimpleNamespace(y=y, links=links))
    begin = time.monotonic()
    engine(X)
    assert time.monotonic() - begin < 2  # each way between them would take several times as long
    engine.destroy()


class Scaled(nn.Linear):
    def forward(self, x: Any) -> torch.Tensor:
        y: Any = super().forward(x) * getattr(x, "scale", 1.0)
        x.uses = getattr(x, "uses", 0) + 1
        y.scale = 3.0
        return y


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_attributes_of_tensors_go_along(micro_batches: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Scaled(4, 4), Scaled(4, 4), Scaled(4, 4))
    plain = copy.deepcopy(model)
    engine = engine_of(model, config("device", gradient_accumulation_steps=micro_batches), units=["Scaled"])
    given: Any = X.clone().requires_grad_()
    output, expected = engine(given), plain(X)
    torch.testing.assert_close(output, expected)
    assert output.scale == expected.scale and given.uses == 1
    engine.destroy()


def test_attributes_of_tensors_go_from_layer_to_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Scaled(4, 4), Scaled(4, 4))
    plain = copy.deepcopy(model)
    engine = engine_of(model, config("device"))
    loss = engine.train_batch(iter([(X.clone(), X)]), loss_fn=lambda output, target: output.sum(), by_layer=True)
    torch.testing.assert_close(loss.detach().cpu(), plain(X.clone()).sum().detach())
    engine.destroy()
