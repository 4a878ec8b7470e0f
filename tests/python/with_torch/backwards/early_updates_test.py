"""Updates that begin in the last backward of a step: whatever comes before its end, the bits are those of updates that wait for it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import LENGTH, MEMORY_OF_ITS_OWN, VOCAB, WIDTH, Block, Fails, Tied, batch, config, engine_of, loss_of, make, without_optimizer
from torch import nn

import sluice

STEPS = 5
IN_PLACE = {"device": "host"}
EARLY = {"speculative_bytes": "auto"}
PLACES = pytest.mark.parametrize("keys", [IN_PLACE, MEMORY_OF_ITS_OWN], ids=["in_place", "memory_of_its_own"])

Between = Callable[[Any, Path], Any]


class Shared(nn.Module):
    """A weight of two blocks, and a block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Block(WIDTH) for _ in range(3)])
        self.blocks[2].up.weight = self.blocks[1].up.weight
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(x)


def states(model: nn.Module) -> list[torch.Tensor]:
    """Masters and moments of all parameters."""
    found = []
    for parameter in model.parameters():
        found.append(sluice.utils.safe_get_full_fp32_param(parameter))
        found += [sluice.utils.safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq")]
    return found


def counts(reporter: Any) -> tuple[int, int]:
    report = reporter.report()
    return report["speculative_updates_kept"], report["speculative_updates_dropped"]


def course(
    model: type[nn.Module], source: dict[str, Any], between: Between, folder: Path
) -> tuple[list[torch.Tensor], list[float], tuple[int, int]]:
    """States, losses, and the updates that were kept and dropped. ``between``: after the last backward of steps 1 and 2."""
    engine = engine_of(make(model), source)
    losses: list[float] = []
    for step in range(STEPS):
        for part in range(engine.gradient_accumulation_steps()):
            ids, targets = batch(step * 100 + part)
            loss = loss_of(engine(ids), targets)
            losses.append(loss.item())
            engine.backward(loss)
            if engine.is_gradient_accumulation_boundary() and step in (1, 2):
                between(engine, folder)
            engine.step()
    found = states(engine.module)
    counted = counts(engine)
    engine.destroy()
    return found, losses, counted


def nothing(engine: Any, folder: Path) -> None:
    pass


def one_more_backward(engine: Any, folder: Path) -> None:
    ids, targets = batch(77)
    loss_of(engine(ids), targets).backward()


def backward_of_a_part(engine: Any, folder: Path) -> None:
    block = engine.module.blocks[1]
    block(torch.ones(2, LENGTH, WIDTH)).square().mean().backward()


def backward_that_fails(engine: Any, folder: Path) -> None:
    """The step begins anew, in the engine's next call."""
    x = torch.ones(2, LENGTH, WIDTH)
    with pytest.raises(RuntimeError, match="on purpose"):
        engine.module.blocks[1](Fails.apply(engine.module.blocks[0](x))).sum().backward()
    for part in range(engine.gradient_accumulation_steps()):
        ids, targets = batch(part)
        engine.backward(loss_of(engine(ids), targets))
        if part + 1 < engine.gradient_accumulation_steps():
            engine.step()


def gradient_set(engine: Any, folder: Path) -> None:
    weight = engine.module.blocks[1].down.weight
    gradient = sluice.utils.safe_get_full_grad(weight)
    assert gradient is not None
    sluice.utils.safe_set_full_grad(weight, 2 * gradient)


def gradient_dropped(engine: Any, folder: Path) -> None:
    engine.module.blocks[1].down.weight.grad = None


def gradients_dropped(engine: Any, folder: Path) -> None:
    engine.zero_grad()
    ids, targets = batch(77)
    engine.backward(loss_of(engine(ids), targets))


def not_finite(engine: Any, folder: Path) -> None:
    weight = engine.module.blocks[1].down.weight
    sluice.utils.safe_set_full_grad(weight, torch.full((WIDTH, 4 * WIDTH), torch.nan))


def rate_changed(engine: Any, folder: Path) -> None:
    engine.set_lr(0.5 * engine.get_lr()[0])


def decay_changed(engine: Any, folder: Path) -> None:
    engine.optimizer.param_groups[0]["weight_decay"] += 0.1


def betas_changed(engine: Any, folder: Path) -> None:
    engine.optimizer.param_groups[0]["betas"] = (0.8, 0.99)


def master_set(engine: Any, folder: Path) -> None:
    weight = engine.module.blocks[1].down.weight
    sluice.utils.safe_set_full_fp32_param(weight, 0.5 * sluice.utils.safe_get_full_fp32_param(weight))


def moment_set(engine: Any, folder: Path) -> None:
    weight = engine.module.blocks[1].down.weight
    sluice.utils.safe_set_full_optimizer_state(weight, torch.ones(WIDTH, 4 * WIDTH), "exp_avg_sq")


def weight_written(engine: Any, folder: Path) -> None:
    weight = engine.module.blocks[1].down.weight
    with sluice.zero.GatheredParameters(weight, modifier_rank=0), torch.no_grad():
        weight.mul_(0.5)


def checkpoint_saved(engine: Any, folder: Path) -> None:
    engine.save_checkpoint(folder, tag=f"step{engine.global_steps}")


def checkpoint_loaded(engine: Any, folder: Path) -> None:
    engine.save_checkpoint(folder, tag=f"step{engine.global_steps}")
    engine.load_checkpoint(folder)
    ids, targets = batch(77)
    engine.backward(loss_of(engine(ids), targets))


# By name: whether updates are kept in the steps in which it happens, or all are dropped.
HAPPENINGS: dict[str, tuple[Between, str]] = {
    each.__name__: (each, effect)
    for each, effect in (
        (nothing, "kept"),
        (one_more_backward, "some"),
        (backward_of_a_part, "some"),
        (backward_that_fails, "some"),
        (gradient_set, "some"),
        (gradient_dropped, "some"),
        (gradients_dropped, "some"),
        (not_finite, "some"),
        (rate_changed, "some"),
        (decay_changed, "some"),
        (betas_changed, "some"),
        (master_set, "some"),
        (moment_set, "some"),
        (weight_written, "some"),
        (checkpoint_saved, "kept"),
        (checkpoint_loaded, "some"),
    )
}


def assert_equal(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@PLACES
@pytest.mark.parametrize("happening", HAPPENINGS)
def test_what_comes_before_the_end_of_a_step_changes_no_bit(happening: str, keys: dict[str, Any], tmp_path: Path) -> None:
    between, effect = HAPPENINGS[happening]
    more: dict[str, Any] = {"bf16": {"enabled": True}} if happening == "nothing" else {}
    expected = course(Tied, config(sluice=keys, **more), between, tmp_path / "a")
    mine = course(Tied, config(sluice={**keys, **EARLY}, **more), between, tmp_path / "b")
    assert_equal(mine[0], expected[0])
    assert mine[1] == expected[1]
    assert expected[2] == (0, 0)
    kept, dropped = mine[2]
    assert kept > 0
    assert (dropped == 0) == (effect == "kept")


# The first step of a unit that is called twice shows it.
@PLACES
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("clipping", [0.0, 1e-3, 1e9])
def test_shared_weights_and_micro_batches(clipping: float, parts: int, keys: dict[str, Any], tmp_path: Path) -> None:
    more: dict[str, Any] = {"gradient_clipping": clipping, "gradient_accumulation_steps": parts}
    expected = course(Shared, config(sluice=keys, **more), nothing, tmp_path)
    mine = course(Shared, config(sluice={**keys, **EARLY}, **more), nothing, tmp_path)
    resident = course(Shared, config("device", sluice={"device": "host"}, **more), nothing, tmp_path)
    for other in (expected, resident):
        assert_equal(mine[0], other[0])
        assert mine[1] == other[1]
    kept, dropped = mine[2]
    assert (kept > dropped) == (clipping != 1e-3)


def test_a_loop_without_an_engine(tmp_path: Path) -> None:
    """A scheduler changes the rate of each step, and one step has one backward more."""
    results = []
    for sluice_keys in (IN_PLACE, {**IN_PLACE, **EARLY}):
        model = make(Tied)
        client = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(client, lambda step: 1 / (step + 1))
        optimizer = sluice.offload(model, config(sluice=sluice_keys), optimizer=client)
        for step in range(STEPS):
            for part in range(2 if step == 2 else 1):
                ids, targets = batch(step * 100 + part)
                loss_of(model(ids), targets).backward(retain_graph=step == 3)
            optimizer.step()
            schedule.step()
        results.append((states(model), counts(optimizer)))
        assert ("updates begun early, kept" in str(optimizer.report())) == ("speculative_bytes" in sluice_keys)
        optimizer.close()
    assert_equal(results[0][0], results[1][0])
    kept, dropped = results[1][1]
    assert kept > dropped > 0


@pytest.mark.parametrize("guest", ["none", "lives", "ended"])
def test_an_engine_that_evaluates_over_the_one_that_trains_keeps_them(guest: str) -> None:
    """Rates of the steps are those of the script's scheduler, and not of the configuration that the other engine has too."""
    model = make(Tied)
    client = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(client, lambda step: 1 / (step + 1))
    engine = engine_of(model, config(sluice={**IN_PLACE, **EARLY}), optimizer=client, lr_scheduler=schedule)
    if guest != "none":
        source = without_optimizer()
        other = engine_of(model, source)
        with torch.no_grad():
            assert torch.equal(other(batch(0)[0]), engine(batch(0)[0]))
        if guest == "ended":
            other.destroy()
            del other
            gc.collect()
    for step in range(STEPS):
        ids, targets = batch(step)
        engine.backward(loss_of(engine(ids), targets))
        engine.step()
    kept, dropped = counts(engine)
    assert kept > 0
    assert dropped == 0
    engine.destroy()


def test_a_graph_that_is_used_twice() -> None:
    results = []
    for sluice_keys in (IN_PLACE, {**IN_PLACE, **EARLY}):
        model = make(Tied)
        optimizer = sluice.offload(model, config(sluice=sluice_keys))
        for step in range(STEPS):
            ids, targets = batch(step)
            loss = loss_of(model(ids), targets)
            loss.backward(retain_graph=True)
            if step == 2:
                loss.backward()
            optimizer.step()
        results.append((states(model), counts(optimizer)))
        optimizer.close()
    assert_equal(results[0][0], results[1][0])
    assert results[1][1][1] > 0


def test_fp16_steps_that_overflow_are_skipped(tmp_path: Path) -> None:
    more: dict[str, Any] = {"fp16": {"enabled": True, "initial_scale_power": 16, "hysteresis": 1}}  # two steps overflow
    expected = course(Tied, config(sluice=MEMORY_OF_ITS_OWN, **more), nothing, tmp_path)
    mine = course(Tied, config(sluice={**MEMORY_OF_ITS_OWN, **EARLY}, **more), nothing, tmp_path)
    assert_equal(mine[0], expected[0])
    assert mine[1] == expected[1]
    assert mine[2][0] > 0


def test_an_engine_ends_between_a_backward_and_its_step() -> None:
    engine = engine_of(make(Tied), config(sluice={**IN_PLACE, **EARLY}))
    for step in range(2):
        ids, targets = batch(step)
        engine.backward(loss_of(engine(ids), targets))
        if step == 0:
            engine.step()
    model = engine.module
    expected = {name: value.clone() for name, value in engine.module_state_dict().items()}
    engine.destroy()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())
