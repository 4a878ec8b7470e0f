"""Units that are updated in the backward that completes their gradients: bits are those of updates by step()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from early_updates_test import IN_PLACE, STEPS, Shared, assert_equal, states
from small_models import MEMORY_OF_ITS_OWN, VOCAB, Tied, batch, config, engine_of, loss_of, make, train
from torch import nn
from torch.utils.checkpoint import checkpoint

import sluice

KEY = {"optimizer_in_backward": True}


class Recomputed(nn.Module):
    """Blocks whose activations are computed again, one of them called twice."""

    def __init__(self, use_reentrant: bool = False, twice: bool = True) -> None:
        super().__init__()
        self.inner = Shared()
        self.use_reentrant, self.twice = use_reentrant, twice

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.inner.embedding(ids)
        blocks = list(self.inner.blocks)
        for block in (*blocks, blocks[0]) if self.twice else blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.inner.head(x)


class InSegments(Recomputed):
    """Several blocks are computed again at once."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.inner.embedding(ids)
        for part in (self.inner.blocks[:2], self.inner.blocks[2:]):
            x = checkpoint(nn.Sequential(*part), x, use_reentrant=self.use_reentrant)
        return self.inner.head(x)


class AllInside(Recomputed):
    """No parameter is in the graph of the model's output: that of each is made in backward."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(*ids.shape, 1, requires_grad=True, dtype=self.inner.head.weight.dtype)
        for part in (self.embed, self.inner.blocks[0], self.inner.blocks[1], self.inner.head):
            x = checkpoint(part, ids, x, use_reentrant=True) if part == self.embed else checkpoint(part, x, use_reentrant=True)
        return x

    def embed(self, ids: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        return self.inner.embedding(ids) + begin


class InsideUnits(nn.Module):
    """As AllInside, but each unit's own forward checkpoints."""

    class Part(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.part, x, use_reentrant=True)

    def __init__(self) -> None:
        super().__init__()
        inner = Shared()
        self.register_buffer("table", inner.embedding.weight.detach())
        self.blocks = nn.ModuleList([self.Part(inner.blocks[0]), self.Part(inner.head)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table[ids].requires_grad_()
        for block in self.blocks:
            x = block(x)
        return x


class Branches(nn.Module):
    """A block that some forwards leave out, and one that no forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Shared()
        self.unused = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.calls = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = self.inner.embedding(ids)
        for block in list(self.inner.blocks)[: 1 + self.calls % 3]:
            x = block(x)
        return self.inner.head(x)


def source(place: str = "cpu", keys: dict[str, Any] = IN_PLACE, in_backward: bool = True, **more: Any) -> dict[str, Any]:
    return config(place, sluice={**keys, **(KEY if in_backward else {})}, **more)


def course(model: Any, config: dict[str, Any], **arguments: Any) -> tuple[list[torch.Tensor], list[float], list[float]]:
    """States, losses and norms."""
    engine = engine_of(make(model), config, **arguments)
    losses, norms = [], []
    for step in range(STEPS):
        losses += train(engine, range(step, step + 1))
        norms.append(engine.get_global_grad_norm())
    found = states(engine.module)
    engine.destroy()
    return found, losses, norms


def assert_same_states(take_steps: Callable[[Any], None], model: Any = Tied, keys: dict[str, Any] | None = None, **arguments: Any) -> None:
    """Whether these steps leave the states that they leave without the key. ``keys`` of the configuration."""
    results = []
    for in_backward in (False, True):
        engine = engine_of(make(model), source(in_backward=in_backward, **(keys or {})), **arguments)
        take_steps(engine)
        results.append(states(engine.module))
        engine.destroy()
    assert_equal(*results)


def trained(source: dict[str, Any], model: Any = Tied) -> Any:
    engine = engine_of(make(model), source)
    ids, targets = batch(0)
    engine.backward(loss_of(engine(ids), targets))
    return engine


def assert_same(mine: Any, theirs: Any) -> None:
    assert_equal(mine[0], theirs[0])
    assert mine[1:] == theirs[1:]


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(
    ("place", "keys"),
    [("cpu", IN_PLACE), ("cpu", MEMORY_OF_ITS_OWN), ("device", IN_PLACE), ("cpu", {**IN_PLACE, "overlap": False})],
    ids=["in_place", "memory_of_its_own", "resident", "without_overlap"],
)
@pytest.mark.parametrize(
    "model",
    [Tied, Shared, Recomputed, lambda: Recomputed(use_reentrant=True, twice=False), lambda: InSegments(), AllInside, InsideUnits, Branches],
    ids=["tied", "shared", "recomputed", "reentrant", "segments", "all_inside", "inside_units", "branches"],
)
def test_bits_are_those_of_updates_by_step(model: Any, place: str, keys: dict[str, Any], parts: int) -> None:
    more: dict[str, Any] = {"gradient_accumulation_steps": parts, "bf16": {"enabled": parts == 1}}
    assert_same(course(model, source(place, keys, **more)), course(model, source(place, keys, in_backward=False, **more)))


def test_states_on_a_drive(tmp_path: Path) -> None:
    drives = [{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / name)}}} for name in "ab"]
    for drive in drives:
        Path(drive["zero_optimization"]["offload_optimizer"]["nvme_path"]).mkdir()  # type: ignore[index]
    assert_same(course(Tied, source(**drives[0])), course(Tied, source(in_backward=False, **drives[1])))


def rows(engine: Any) -> dict[str, Any]:
    return {row["component"]: row for row in engine.report()["plan"]["rows"]}


def test_gradients_take_the_memory_of_two_or_three_units() -> None:
    class Deep(Shared):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([type(self.blocks[0])(64) for _ in range(12)])
            self.embedding, self.head = nn.Embedding(32, 64), nn.Linear(64, 32)

    hosts = []
    for in_backward in (False, True):
        engine = engine_of(make(Deep), source(in_backward=in_backward))
        found = rows(engine)
        hosts.append(found["gradients"]["host"] + found.get("gradient slots", {"host": 0})["host"])
        engine.destroy()
    assert hosts[1] < 0.35 * hosts[0]


def test_values_of_parameter_groups_are_those_of_the_backward() -> None:
    results = []
    for in_backward in (False, True):
        model = make(Tied)
        client = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(client, lambda step: 1 / (step + 1))
        optimizer = sluice.offload(model, source(in_backward=in_backward), optimizer=client)
        for step in range(STEPS):
            ids, targets = batch(step)
            loss_of(model(ids), targets).backward()
            optimizer.step()
            schedule.step()
        results.append(states(model))
        optimizer.close()
    assert_equal(*results)


class Cell(nn.Module):
    """A unit with three others inside, called several times: more gradients wait than there are slots."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16, 64))
        self.parts = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = x + torch.tanh(part(x)) * self.scale.mean()
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 64)
        self.cell = Cell()
        self.head = nn.Linear(64, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for _ in range(3):
            x = self.cell(x)
        return self.head(x)


RECURRENT = ["embedding", "cell", "cell.parts.0", "cell.parts.1", "cell.parts.2", "head"]


def test_units_that_wait_for_another_backward_get_further_slots(caplog: pytest.LogCaptureFixture) -> None:
    def take_steps(engine: Any) -> None:
        train(engine, range(3))
        ids, targets = batch(0)
        engine.backward(loss_of(engine(ids), targets) * torch.inf)
        engine.step()
        assert engine.skipped_steps == 1

    assert_same_states(take_steps, Recurrent, units=RECURRENT)
    assert "wait for another backward of their unit" in caplog.text


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.y(self.x(x)))


class Crossed(nn.Module):
    """Two units tie different weights of a third, which comes last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCAB, 64), nn.Linear(64, VOCAB)
        self.a, self.b, self.c = Pair(), Pair(), Pair()
        self.b.x.weight, self.c.y.weight = self.a.x.weight, self.a.y.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for part in (self.c, self.b, self.c, self.a):
            x = part(x)
        return self.head(x)


def test_units_that_tie_different_weights_of_one() -> None:
    units = ["embedding", "a", "b", "c", "head"]
    assert_same(course(Crossed, source(), units=units), course(Crossed, source(in_backward=False), units=units))


def test_a_short_last_group_and_a_step_without_a_backward() -> None:
    def take_steps(engine: Any) -> None:
        for parts in (3, 2, 0, 3):
            for part in range(parts):
                ids, targets = batch(part)
                engine.set_gradient_accumulation_boundary(part + 1 == parts)
                engine.backward(loss_of(engine(ids), targets))
                if part + 1 < parts:
                    engine.step()
            engine.step()

    assert_same_states(take_steps, keys={"gradient_accumulation_steps": 3})


def test_a_step_without_a_backward_where_gradients_share_slots() -> None:
    def take_steps(engine: Any) -> None:
        train(engine, range(1))
        for _ in range(2):
            engine.step()

    assert_same_states(take_steps)


class Chain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Linear(8, 8) for _ in range(4)))


def test_layer_by_layer() -> None:
    def loss_of_output(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().mean()

    def take_steps(engine: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        data = iter([(torch.rand(2, 8, generator=generator), torch.rand(2, 8, generator=generator)) for _ in range(9)])
        for _ in range(3):
            engine.train_batch(data, loss_fn=loss_of_output, by_layer=True)

    assert_same_states(take_steps, Chain, {"gradient_accumulation_steps": 3}, units=["0", "1", "2", "3"])
