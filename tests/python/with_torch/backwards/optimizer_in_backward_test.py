"""Units that are updated in the backward that completes their gradients: bits are those of updates by step(), and the rest is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from early_updates_test import IN_PLACE, STEPS, Shared, assert_equal, states
from small_models import MEMORY_OF_ITS_OWN, Tied, batch, config, engine_of, loss_of, make
from torch import nn
from torch.utils.checkpoint import checkpoint

import sluice

KEY = {"optimizer_in_backward": True}
MIXED = "mix of two steps"


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


def course(model: Any, config: dict[str, Any], by_layer: bool = False) -> tuple[list[torch.Tensor], list[float], list[float]]:
    """States, losses and norms."""
    engine = engine_of(make(model), config)
    losses, norms = [], []
    for step in range(STEPS):
        for part in range(engine.gradient_accumulation_steps()):
            ids, targets = batch(step * 100 + part)
            loss = loss_of(engine(ids), targets)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        norms.append(engine.get_global_grad_norm())
    found = states(engine.module)
    engine.destroy()
    return found, losses, norms


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
    [Tied, Shared, Recomputed, lambda: Recomputed(use_reentrant=True, twice=False), lambda: InSegments(), Branches],
    ids=["tied", "shared", "recomputed", "reentrant", "segments", "branches"],
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


def trained(source: dict[str, Any], model: Any = Tied) -> Any:
    engine = engine_of(make(model), source)
    ids, targets = batch(0)
    engine.backward(loss_of(engine(ids), targets))
    return engine


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


def test_values_that_change_between_backward_and_step_are_an_error_that_can_be_mended() -> None:
    engine = trained(source())
    before = engine.get_lr()[0]
    engine.set_lr(0.5 * before)
    with pytest.raises(ValueError, match="step the scheduler after the optimizer"):
        engine.step()
    engine.set_lr(before)
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda engine, folder: engine.zero_grad(), "cannot be dropped"),
        (lambda engine, folder: engine.module.blocks[0].zero_grad(), "is gone"),
        (lambda engine, folder: engine.save_checkpoint(folder), "a checkpoint comes after step"),
        (lambda engine, folder: sluice.utils.safe_get_full_grad(engine.module.blocks[0].down.weight), "is gone"),
        (lambda engine, folder: engine.backward(loss_of(engine(batch(1)[0]), batch(1)[1])), "call step\\(\\) first"),
    ],
    ids=["zero_grad", "zero_grad_of_a_part", "save", "gradient", "backward"],
)
def test_between_backward_and_step(call: Any, words: str, tmp_path: Path) -> None:
    """The error changes nothing."""
    engine = trained(source())
    with pytest.raises(ValueError, match=words):
        call(engine, tmp_path)
    engine.step()
    ids, targets = batch(1)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    found = states(engine.module)
    engine.destroy()
    plain = trained(source(in_backward=False))
    plain.step()
    plain.backward(loss_of(plain(ids), targets))
    plain.step()
    assert_equal(found, states(plain.module))
    plain.destroy()


def test_a_graph_has_one_backward() -> None:
    engine = engine_of(make(Tied), source())
    ids, targets = batch(0)
    loss = loss_of(engine(ids), targets)
    engine.backward(loss, retain_graph=True)
    with pytest.raises(ValueError, match="call step\\(\\) first"):
        engine.backward(loss)
    engine.step()
    engine.destroy()


def test_a_reentrant_checkpoint_that_is_used_twice() -> None:
    engine = engine_of(make(lambda: Recomputed(use_reentrant=True)), source())
    ids, targets = batch(0)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        engine.backward(loss_of(engine(ids), targets))
    with pytest.raises(RuntimeError, match=MIXED):
        engine(ids)
    engine.destroy()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError("on purpose")


class FailsOnce(Tied):
    fails = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for index, block in enumerate(self.blocks):
            x = Fails.apply(block(x)) if self.fails and index == 0 else block(x)
        return self.head(x)


def test_a_backward_that_fails_half_way_leaves_a_mix_until_a_checkpoint_is_loaded(tmp_path: Path) -> None:
    engine = trained(source(), FailsOnce)
    engine.step()
    engine.save_checkpoint(tmp_path / "ck")
    expected = states(engine.module)
    ids, targets = batch(1)
    engine.module.fails = True
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.backward(loss_of(engine(ids), targets))
    engine.module.fails = False
    for call in (lambda: engine(ids), lambda: engine.save_checkpoint(tmp_path / "other"), engine.step):
        with pytest.raises(RuntimeError, match=MIXED):
            call()
    engine.load_checkpoint(tmp_path / "ck")
    assert_equal(states(engine.module), expected)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 2
    engine.destroy()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("what", ["loss", "first gradient"])
def test_a_step_that_is_not_finite_before_its_first_update_is_skipped(what: str, parts: int) -> None:
    engine = engine_of(make(Tied), source(gradient_accumulation_steps=parts))
    before = states(engine.module)
    for _ in range(parts):
        ids, targets = batch(0)
        loss = loss_of(engine(ids), targets)
        if what == "loss":
            loss = loss * torch.inf
        else:
            loss.register_hook(lambda gradient: gradient * torch.nan)
        engine.backward(loss)
        engine.step()
    assert engine.skipped_steps == 1
    assert_equal(states(engine.module), before)
    for _ in range(parts):
        ids, targets = batch(1)
        engine.backward(loss_of(engine(ids), targets))
        engine.step()
    assert engine.skipped_steps == 1
    engine.destroy()


def test_a_gradient_that_is_not_finite_after_an_update_ends_the_training() -> None:
    engine = engine_of(make(Tied), source())
    ids, targets = batch(0)
    engine.module.blocks[0].register_full_backward_hook(lambda module, inputs, outputs: None)
    handle = engine.module.blocks[0].down.weight.register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(RuntimeError, match=r"blocks\.0.* is not finite. With optimizer_in_backward.*leave that key out"):
        engine.backward(loss_of(engine(ids), targets))
        engine.step()
    handle.remove()
    with pytest.raises(RuntimeError, match=MIXED):
        engine(ids)
    engine.destroy()


def test_a_short_last_group_and_a_step_without_a_backward() -> None:
    results = []
    for in_backward in (False, True):
        engine = engine_of(make(Tied), source(in_backward=in_backward, gradient_accumulation_steps=3))
        for parts in (3, 2, 0, 3):
            for part in range(parts):
                ids, targets = batch(part)
                engine.set_gradient_accumulation_boundary(part + 1 == parts)
                engine.backward(loss_of(engine(ids), targets))
                if part + 1 < parts:
                    engine.step()
            engine.step()
        results.append(states(engine.module))
        engine.destroy()
    assert_equal(*results)


def test_a_step_without_a_backward_where_gradients_share_slots() -> None:
    results = []
    for in_backward in (False, True):
        engine = trained(source(in_backward=in_backward))
        for _ in range(3):
            engine.step()
        results.append(states(engine.module))
        engine.destroy()
    assert_equal(*results)


def test_a_boundary_by_hand_needs_the_number_of_micro_batches() -> None:
    engine = engine_of(make(Tied), source())
    ids, targets = batch(0)
    engine.set_gradient_accumulation_boundary(False)
    with pytest.raises(ValueError, match="gradient_accumulation_steps 1 has no room"):
        engine.backward(loss_of(engine(ids), targets))
    engine.set_gradient_accumulation_boundary(True)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


class Chain(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Linear(8, 8) for _ in range(4)))


def test_layer_by_layer() -> None:
    def loss_of_output(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).square().mean()

    results = []
    for in_backward in (False, True):
        engine = engine_of(make(Chain), source(in_backward=in_backward, gradient_accumulation_steps=3), units=["0", "1", "2", "3"])
        generator = torch.Generator().manual_seed(0)
        data = iter([(torch.rand(2, 8, generator=generator), torch.rand(2, 8, generator=generator)) for _ in range(9)])
        for _ in range(3):
            engine.train_batch(data, loss_fn=loss_of_output, by_layer=True)
        results.append(states(engine.module))
        engine.destroy()
    assert_equal(*results)


@pytest.mark.parametrize(
    ("more", "words"),
    [({"gradient_clipping": 1.0}, "gradient_clipping needs the norm"), ({"fp16": {"enabled": True}}, "use bf16")],
    ids=["clipping", "fp16"],
)
def test_settings_that_need_all_gradients(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        engine_of(make(Tied), source(**more))
