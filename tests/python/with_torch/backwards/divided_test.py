"""Gradients of a backward that a script begins itself, divided by the micro-batches of a step."""

from __future__ import annotations

import collections
import dataclasses
import gc
import logging
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, data, engine_of, without_optimizer
from torch import nn

import sluice
from sluice import utils

Pair = collections.namedtuple("Pair", ["loss", "logits"])


class Output(dict[str, Any]):
    """As Hugging Face's outputs."""


@dataclasses.dataclass(frozen=True)
class Record:
    loss: torch.Tensor
    logits: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    loss: torch.Tensor
    logits: torch.Tensor


class WithAttributes(dict[str, Any]):
    def __init__(self, loss: torch.Tensor, logits: torch.Tensor) -> None:
        super().__init__(logits=logits)
        self.loss = loss


# How a model returns its loss and its logits, and how a script finds the loss.
KINDS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], torch.Tensor]]] = {
    "loss": (lambda loss, logits: loss, lambda output: output),
    "tuple": (lambda loss, logits: (loss, logits, 3), lambda output: output[0]),
    "list": (lambda loss, logits: [[loss], logits, loss], lambda output: output[2]),
    "dict": (lambda loss, logits: Output(loss=loss, logits=logits), lambda output: output["loss"]),
    "named tuple": (Pair, lambda output: output.loss),
    "dataclass": (Record, lambda output: output.loss),
    "dataclass with slots": (Slots, lambda output: output.loss),
    "deque": (lambda loss, logits: collections.deque([logits, loss]), lambda output: output[1]),
    "set": (lambda loss, logits: {loss}, lambda output: next(iter(output))),
    "user dict": (lambda loss, logits: collections.UserDict(loss=loss, logits=logits), lambda output: output["loss"]),
    "object": (lambda loss, logits: [types.SimpleNamespace(logits=logits, loss=(loss,))], lambda output: output[0].loss[0]),
    "dict with attributes": (WithAttributes, lambda output: output.loss),
}


class Model(nn.Module):
    def __init__(self, returned: Callable[[Any, Any], Any] = KINDS["loss"][0]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        logits = self.layers(x)
        return self.returned(logits.square().mean(), logits)


def small(returned: Callable[[Any, Any], Any] = KINDS["loss"][0], **keys: Any) -> sluice.SluiceEngine:
    torch.manual_seed(0)
    sgd = {"type": "SGD", "params": {"lr": 0.1}}
    return engine_of(Model(returned), config("device", optimizer=sgd, gradient_accumulation_steps=3, **keys))


def norm_and_weights(engine: sluice.SluiceEngine, backward: Callable[[int, Any], object]) -> list[Any]:
    for number in range(3):
        backward(number, engine(data(number)))
        engine.step()
    found = [engine.get_global_grad_norm(), *engine.module_state_dict().values()]
    engine.destroy()
    return found


def are_equal(first: list[Any], second: list[Any]) -> bool:
    return first[0] == second[0] and all(map(torch.equal, first[1:], second[1:]))


def gradient_of(layer: Any) -> torch.Tensor:
    found = utils.safe_get_full_grad(layer.weight)
    assert found is not None
    return found.clone()


@pytest.mark.parametrize("name", KINDS)
def test_a_loss_of_the_model_has_the_bits_of_the_engines_backward(name: str) -> None:
    returned, loss_in = KINDS[name]
    of_engine = small(returned)
    expected = norm_and_weights(of_engine, lambda number, output: of_engine.backward(loss_in(output)))
    mine = norm_and_weights(small(returned), lambda number, output: loss_in(output).backward())
    mixed_engine = small(returned)
    mixed = norm_and_weights(
        mixed_engine, lambda number, output: (mixed_engine.backward if number % 2 else torch.Tensor.backward)(loss_in(output))
    )
    scaled_engine = small(returned)
    scaled = norm_and_weights(scaled_engine, lambda number, output: scaled_engine.scale(loss_in(output)).backward())
    assert are_equal(mine, expected)
    assert are_equal(mixed, expected)
    assert are_equal(scaled, expected)


def test_a_loss_of_several_outputs_is_divided_once() -> None:
    """The one output is computed from the other one, inside the model."""

    def loss_of(output: Any) -> torch.Tensor:
        loss: torch.Tensor = output["loss"] + output["logits"].sum()
        return loss

    of_engine = small(KINDS["dict"][0])
    expected = norm_and_weights(of_engine, lambda number, output: of_engine.backward(loss_of(output)))
    mine = norm_and_weights(small(KINDS["dict"][0]), lambda number, output: loss_of(output).backward())
    torch.testing.assert_close(mine[1:], expected[1:], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("begun_by", ["the engine", "the script", "nobody"])
def test_nothing_keeps_an_output_or_a_dropped_engine(begun_by: str) -> None:
    engine = small(KINDS["dict"][0])
    kept: list[weakref.ref[Any]] = [weakref.ref(engine)]
    for number in range(3):
        output = engine(data(number))
        kept += map(weakref.ref, output.values())
        if begun_by != "nobody":
            (engine.backward if begun_by == "the engine" else torch.Tensor.backward)(output["loss"])
        engine.step()
    del output, engine
    gc.collect()
    assert [reference() for reference in kept] == [None] * 7


@pytest.mark.parametrize("begun_by", ["the engine", "the script"])
def test_outputs_that_share_memory_refuse_a_change_in_place(begun_by: str, caplog: pytest.LogCaptureFixture) -> None:
    """The graph of the other one would not know of it."""
    engine = small(lambda loss, logits: (logits, logits[:, :1], loss))
    for changed in (0, 1):
        output = engine(data(0))
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            output[changed].mul_(3)
    logits, part, loss = engine(data(0))
    sum_of_all = logits.sum() + part.sum() + loss.mul_(2)
    (engine.backward if begun_by == "the engine" else torch.Tensor.backward)(sum_of_all)
    gradient = gradient_of(engine.module.layers[2])
    engine.destroy()
    torch.manual_seed(0)
    plain: Any = Model(lambda loss, logits: (logits.sum() + logits[:, :1].sum() + 2 * loss) / 3)
    plain(data(0)).backward()
    torch.testing.assert_close(gradient, plain.layers[2].weight.grad)
    assert not caplog.records


class TwoRoots(nn.Module):
    """The second output has a gradient of infinity inside, times that which comes to it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x), torch.sqrt(self.second(x) * 0), self.second(x)


class OnlyTheFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        return gradient, None


def test_an_output_without_a_gradient_gets_no_zeros_and_keeps_its_graph() -> None:
    engine = engine_of(TwoRoots(), config("device", gradient_accumulation_steps=2))
    first, root, third = engine(data(0))
    OnlyTheFirst.apply(first, root).sum().backward()
    third.sum().backward()
    torch.testing.assert_close(gradient_of(engine.module.first), gradient_of(engine.module.second))
    engine.destroy()


def test_a_tensor_that_is_not_divided_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = small(lambda loss, logits: [types.MappingProxyType({"loss": loss})])
    engine.backward(engine(data(0))[0]["loss"])
    assert not caplog.records
    for _ in range(2):
        engine(data(0))[0]["loss"].backward()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "a list with a tensor inside an object" in line and "not divided by the 3 micro-batches" in line
    engine.destroy()


def test_an_engine_that_only_computes_over_this_one_divides_too() -> None:
    engine = small()
    keys = without_optimizer("device", gradient_accumulation_steps=2)
    gradients = []
    for called in (engine, engine_of(engine.module, keys)):
        called(data(0)).backward()
        gradients.append(gradient_of(engine.module.layers[0]))
        engine.zero_grad()
    assert torch.equal(*gradients)
    engine.destroy()


def test_an_output_may_be_changed_in_place() -> None:
    def backward(number: int, loss: torch.Tensor) -> None:
        loss /= 2
        loss.backward()

    of_engine = small()
    expected = norm_and_weights(of_engine, lambda number, loss: of_engine.backward(loss / 2))
    torch.testing.assert_close(norm_and_weights(small(), backward)[1:], expected[1:], rtol=1e-5, atol=1e-7)


def test_the_model_itself_and_a_loop_of_ones_own_divide_nothing() -> None:
    engine = small()
    gradients = []
    for called in (engine, engine.module):
        called(data(0)).backward()
        gradients.append(gradient_of(engine.module.layers[0]))
        engine.zero_grad()
    torch.testing.assert_close(3 * gradients[0], gradients[1])
    engine.destroy()
    torch.manual_seed(0)
    model: Any = Model()
    sluice.offload(model, config("device", gradient_accumulation_steps=3))
    model(data(0)).backward()
    assert torch.equal(gradient_of(model.layers[0]), gradients[1])


def test_outputs_of_another_engine_divide_nothing_in_an_engines_backward() -> None:
    gradients = []
    for through_engine in (True, False):
        torch.manual_seed(0)
        keys = config("device", gradient_accumulation_steps=3)
        generator = engine_of(nn.Sequential(nn.Linear(8, 8)), keys)
        discriminator = engine_of(nn.Sequential(nn.Linear(8, 1)), keys)
        judged = (discriminator if through_engine else discriminator.module)(generator(data(0)))
        generator.backward(judged.mean())
        gradients.append(gradient_of(generator.module[0]))
        generator.destroy()
        discriminator.destroy()
    assert torch.equal(*gradients)


def test_containers_stay_the_objects_that_they_are() -> None:
    kept: list[Any] = []

    def returned(loss: torch.Tensor, logits: torch.Tensor) -> Any:
        kept.append(Output(loss=loss, all=[logits, logits], count=2))
        kept[-1]["itself"] = kept[-1]
        return kept[-1]

    engine = small(returned)
    output = engine(data(0))
    assert output is kept[0] and output["itself"] is output and output["all"][0] is output["all"][1]
    with torch.no_grad():
        evaluated = engine(data(0))
    assert not evaluated["loss"].requires_grad and torch.equal(evaluated["loss"], output["loss"])
    engine.destroy()
