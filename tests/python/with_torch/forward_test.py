"""Forwards that reach over their modules, compiled blocks, and the GIL in a step."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from conftest import free_rates_kept
from small_models import WIDTH, Tied, assert_follows, batch, config, differences, engine_of, loss_of, make, train
from torch import nn
from torch.utils.checkpoint import checkpoint

from sluice.utils import safe_get_full_grad


class FunctionalHead(Tied):
    """The embedding's weight is the head's by a function, and the norm's by attributes."""

    def __init__(self) -> None:
        super().__init__()
        del self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position
        for block in self.blocks:
            x = block(x)
        x = nn.functional.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias)
        return nn.functional.linear(x, self.embedding.weight)


class FunctionalHeadCheckpointed(FunctionalHead):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, ids, use_reentrant=False)


@pytest.mark.parametrize("model", [FunctionalHead, FunctionalHeadCheckpointed])
def test_a_parameter_that_another_forward_uses(model: type[nn.Module]) -> None:
    assert_follows(model)
    engine = engine_of(make(model))
    ids, targets = batch(0)
    with torch.no_grad():
        evaluated = engine(ids)
    assert torch.equal(evaluated, engine(ids))
    assert engine.module.embedding.weight.numel() == 0
    train(engine, range(1))
    engine.destroy()
    assert type(engine.module.embedding._parameters) is dict


class Compiled(Tied):
    """Blocks that torch.compile traces; its code generator would need a compiler."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.compile(backend="aot_eager")


def test_compiled_blocks_follow_plain_pytorch() -> None:
    assert_follows(Compiled)


def test_an_engine_compiles_its_units() -> None:
    graphs = 0

    def backend(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    expected = train(engine_of(make()), range(3))
    engine = engine_of(make())
    engine.compile(backend=backend, compile_kwargs={"dynamic": False})
    assert differences(train(engine, range(3)), expected) < 1e-6
    assert graphs
    with pytest.raises(ValueError, match="no schedule"):
        engine.compile(schedule=[])
    engine.destroy()


def test_a_compiled_engine_trains_as_the_engine() -> None:
    keys = config(gradient_accumulation_steps=2)
    expected = train(engine_of(make(), keys), range(3))
    compiled: Any = torch.compile(engine_of(make(), keys), backend="aot_eager")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo does not know how to trace")
        assert differences(train(compiled, range(3)), expected) < 1e-6
    compiled.destroy()


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2000, 2000) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_step_releases_the_gil() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keys = config()
    keys["sluice"]["threads"] = {"compute": 1, "optimizer": 1}  # one core is left for the thread that counts
    engine = engine_of(make(Wide), keys)
    engine.backward(engine(torch.ones(1, 2000)).square().mean())

    def steps() -> None:
        for _ in range(6):  # gradients of zero
            engine.loop.end_step([])
            engine.loop.finish()

    kept = free_rates_kept(steps, 0.2)[-1]
    print(f"a thread that counts keeps {kept:.2f} of its free rate during a step")
    assert kept >= 0.5
    engine.destroy()
    torch.set_num_threads(threads)


# As PEFT's adapters are in a forward that leaves them out, for the reference of a preference loss.
def test_a_parameter_may_need_no_gradient_during_a_forward() -> None:
    engine = engine_of(make(Tied))
    ids, targets = batch(0)
    weight = engine.module.blocks[1].up.weight
    weight.requires_grad_(False)
    with torch.no_grad():
        reference = engine(ids)
    weight.requires_grad_(True)
    logits = engine(ids)
    assert torch.equal(reference, logits)
    engine.backward(loss_of(logits, targets))
    assert safe_get_full_grad(weight).abs().sum() > 0
    engine.step()
    weight.requires_grad_(False)
    engine.backward(loss_of(engine(ids), targets))
    with pytest.raises(ValueError, match="does not require a gradient at the end of a step"):
        engine.step()
    engine.destroy()
