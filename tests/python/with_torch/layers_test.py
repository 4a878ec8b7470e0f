"""train_batch(by_layer=True): all micro-batches pass a layer before the next one, with the bits of one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MEMORY_OF_ITS_OWN, VOCAB, WIDTH, Block, batch, config, engine_of, loss_of, make
from torch import nn
from torch.utils.checkpoint import checkpoint

import sluice

PARTS = 3


class Pair(nn.Module):
    """A layer that takes and gives a tuple; its second value passes by."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(WIDTH)

    def forward(self, x: Any) -> Any:
        whole = x if isinstance(x, tuple) else (x, x)
        return self.inner(whole[0]), whole[1]


class Join(nn.Module):
    def forward(self, x: Any) -> torch.Tensor:
        return x[0] + x[1]


class Recomputed(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Sequence(nn.Sequential):
    def __init__(self) -> None:
        blocks = [Block(WIDTH), Pair(), Pair(), Join(), Recomputed(WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)]
        super().__init__(nn.Embedding(VOCAB, WIDTH), *blocks, nn.Linear(WIDTH, VOCAB))


def stream() -> Iterator[Any]:
    number = 0
    while True:
        yield batch(number)
        number += 1


def course(by_layer: bool, keys: dict[str, Any], steps: int = 4) -> tuple[list[float], dict[str, torch.Tensor], dict[str, Any], float | None]:
    engine = engine_of(make(Sequence), keys)
    data = stream()
    losses = [float(engine.train_batch(data, loss_fn=loss_of, by_layer=by_layer)) for _ in range(steps)]
    assert (engine.global_steps, engine.micro_steps) == (steps, steps * PARTS)
    found = losses, engine.module_state_dict(), engine.report(), engine.get_global_grad_norm()
    engine.destroy()
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tier", ["device", "cpu", "nvme"])
def test_losses_and_weights_have_the_bits_of_micro_batches_in_turn(tier: str, precision: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"gradient_accumulation_steps": PARTS, "gradient_clipping": 1.0}
    if precision == "bf16":
        keys["bf16"] = {"enabled": True}
    courses = [course(by_layer, config(tier, tmp_path, **keys)) for by_layer in (False, True)]
    assert courses[0][0] == courses[1][0]
    assert courses[0][3] == courses[1][3]
    assert all(torch.equal(courses[1][1][name], value) for name, value in courses[0][1].items())
    assert courses[0][0][-1] < courses[0][0][0]


def test_weights_move_once_in_a_step_and_gradients_do_either_way() -> None:
    keys = config(gradient_accumulation_steps=PARTS, gradient_clipping=1.0, sluice=MEMORY_OF_ITS_OWN)
    in_turn, by_layer = (course(choice, keys)[2] for choice in (False, True))
    assert in_turn["d2h_bytes"] == by_layer["d2h_bytes"] > 0
    assert any("add up on the device" in choice for choice in in_turn["choices"])
    assert by_layer["h2d_bytes"] < in_turn["h2d_bytes"] / 2


@pytest.mark.parametrize("by_layer", [False, True])
def test_on_the_host_nothing_moves_and_no_bit_changes(by_layer: bool) -> None:
    keys = config(gradient_accumulation_steps=PARTS, gradient_clipping=1.0)
    moving = course(by_layer, {**keys, "sluice": MEMORY_OF_ITS_OWN})
    at_home = course(by_layer, keys)
    assert moving[2]["h2d_bytes"] > 0
    assert at_home[2]["h2d_bytes"] == at_home[2]["d2h_bytes"] == 0
    assert any("are used there: the device is the host" in choice for choice in at_home[2]["choices"])
    assert at_home[0] == moving[0]
    assert all(torch.equal(moving[1][name], value) for name, value in at_home[1].items())


def test_an_exception_costs_the_step_and_nothing_else() -> None:
    keys = config(gradient_accumulation_steps=PARTS)
    expected = course(True, keys)[0]
    engine = engine_of(make(Sequence), keys)
    data = stream()
    losses = [float(engine.train_batch(data, loss_fn=loss_of, by_layer=True)) for _ in range(2)]
    for place in (1, 4):
        handle = engine.module[place].register_forward_pre_hook(_fail)
        with pytest.raises(ArithmeticError):
            engine.train_batch(iter([batch(0)] * PARTS), loss_fn=loss_of, by_layer=True)
        handle.remove()
    with pytest.raises(ArithmeticError):
        engine.train_batch(iter([batch(0)] * PARTS), loss_fn=_fail, by_layer=True)
    losses += [float(engine.train_batch(data, loss_fn=loss_of, by_layer=True)) for _ in range(2)]
    assert losses == expected
    engine.destroy()


def _fail(*_: Any) -> Any:
    raise ArithmeticError("on purpose")


class Repeated(nn.Sequential):
    """A layer that stands twice in the sequence."""

    def __init__(self) -> None:
        block = Block(WIDTH)
        super().__init__(nn.Embedding(VOCAB, WIDTH), block, nn.Tanh(), block, nn.Linear(WIDTH, VOCAB))


def test_a_layer_may_stand_twice() -> None:
    keys = config(gradient_accumulation_steps=PARTS)
    losses = []
    for by_layer in (False, True):
        engine = engine_of(make(Repeated), keys)
        data = stream()
        losses.append([float(engine.train_batch(data, loss_fn=loss_of, by_layer=by_layer)) for _ in range(5)])
        engine.destroy()
    assert losses[0][0] == losses[1][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


class WithLoss(nn.Sequential):
    """A sequence whose last layer gives the loss."""

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, VOCAB)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x).square().mean()

    def __init__(self) -> None:
        super().__init__(nn.Embedding(VOCAB, WIDTH), Block(WIDTH), self.Last())


def test_a_sequence_may_end_with_its_loss() -> None:
    engine = engine_of(make(WithLoss), config(gradient_accumulation_steps=PARTS))
    batches = iter([batch(0)[0], (batch(1)[0],), [batch(2)[0]]])
    first = engine.train_batch(batches, by_layer=True)
    assert first.isfinite()
    assert engine.global_steps == 1
    with pytest.raises(ValueError, match="takes one input, and the batch has 2"):
        engine.train_batch(stream(), by_layer=True)
    engine.backward(engine(batch(3)[0]))
    engine.step()
    with pytest.raises(ValueError, match="one has begun, with 1 of 3"):
        engine.train_batch(batches, by_layer=True)
    engine.destroy()


def test_models_that_are_no_sequence_of_units_are_named() -> None:
    engine = engine_of(make())
    with pytest.raises(ValueError, match=r"nn\.Sequential, and the model is a Tied"):
        engine.train_batch(stream(), loss_fn=loss_of, by_layer=True)
    engine.destroy()
    engine = sluice.initialize(model=make(Sequence), config=config(), units=[nn.Linear, nn.Embedding, nn.LayerNorm])[0]
    with pytest.raises(ValueError, match="each layer is one unit"):
        engine.train_batch(stream(), loss_fn=loss_of, by_layer=True)
    engine.destroy()


def test_a_plan_says_what_micro_batches_cost() -> None:
    keys = config(gradient_accumulation_steps=PARTS, sluice=MEMORY_OF_ITS_OWN)
    plan = sluice.plan(make(Sequence), keys)
    (line,) = [choice for choice in plan.choices if "by_layer" in choice]
    assert f"{PARTS} micro-batches" in line
    for others in (config(sluice=MEMORY_OF_ITS_OWN), config(gradient_accumulation_steps=PARTS)):  # one micro-batch; nothing moves
        assert not [choice for choice in sluice.plan(make(Sequence), others).choices if "by_layer" in choice]
    engine = engine_of(make(), keys)
    (line,) = [choice for choice in engine.report()["choices"] if "micro-batches" in choice]
    assert "by_layer" not in line
    engine.destroy()


class InPlace(nn.Sequential):
    """Layers that change their input, with and without parameters."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((WIDTH,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(self.scale).relu_()

    def __init__(self) -> None:
        super().__init__(nn.Embedding(VOCAB, WIDTH), nn.ReLU(inplace=True), Block(WIDTH), self.Scaled(), nn.Linear(WIDTH, VOCAB))


def test_a_layer_may_change_its_input_in_place() -> None:
    losses = []
    for by_layer in (False, True):
        engine = engine_of(make(InPlace), config(gradient_accumulation_steps=PARTS))
        data = stream()
        losses.append([float(engine.train_batch(data, loss_fn=loss_of, by_layer=by_layer)) for _ in range(4)])
        engine.destroy()
    assert losses[0] == losses[1]
