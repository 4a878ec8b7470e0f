"""A forward that calls a module inside a block, or uses its weight, from outside that block, against plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from small_models import LENGTH, MEMORY_OF_ITS_OWN, CallsInside, Conditioned, config, differences, engine_of, make
from torch import nn
from torch.utils.checkpoint import checkpoint

from sluice import utils
from sluice._training.owners import owner_of
from sluice._training.passes.absent import AbsentParameter
from sluice._training.units import Choice, find_units

SCRIPT = Path(__file__).parent / "calls_inside_script.py"
TIERS: list[tuple[str, dict[str, Any]]] = [("device", {}), ("cpu", {}), ("cpu", {"sluice": MEMORY_OF_ITS_OWN})]


class Before(CallsInside):
    """The block is called later."""

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        x = x * self.blocks[1].embed(condition)
        for block in self.blocks:
            x = block(x, condition)
        return self.out(x)


class Between(CallsInside):
    """The block was called, is called later, or the weight is used by itself."""

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x, condition) * self.blocks[1].embed(condition)
        x = self.blocks[1](x, condition) * self.blocks[0].embed(condition)
        x = self.blocks[2](x, condition) @ self.blocks[2].mix.weight.t()
        return self.out(x)


class NotCalled(CallsInside):
    """The block itself is never called."""

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks[0](x, condition) * self.blocks[1].embed(condition))


class Checkpointed(CallsInside):
    """Blocks are computed again in backward, and so is the call from outside."""

    reentrant = False

    def outside(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.blocks[2](x * self.blocks[0].embed(condition), condition)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        condition.requires_grad_()
        for block in self.blocks:
            x = checkpoint(block, x, condition, use_reentrant=self.reentrant)
        x = checkpoint(self.outside, x, condition, use_reentrant=self.reentrant)
        return self.out(x * self.blocks[1].embed(condition))


class Reentrant(Checkpointed):
    reentrant = True


class Frozen(CallsInside):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].requires_grad_(False)


class Shared(CallsInside):
    """A block's weight is the last layer's too, which the forward uses itself: the block's other weights come and go with it.

    An evaluation uses one of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(LENGTH, LENGTH)
        self.out.weight = self.blocks[0].mix.weight

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        penalty = 0 if torch.is_grad_enabled() else self.blocks[0].embed[0].weight.square().sum()
        for block in self.blocks:
            x = block(x, condition)
        return nn.functional.linear(x, self.out.weight) + penalty


class FromWithin(CallsInside):
    """Weights of inner modules are used first, and then one of the block around them."""

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        x = x @ self.blocks[0].embed[0].weight.t() @ self.blocks[1].embed[2].weight.t()
        penalty = self.blocks[0].mix.weight.square().sum() + self.blocks[1].mix.weight.square().sum()
        return super().forward(x, condition) + penalty


class Aside(CallsInside):
    """A loss leaves the forward as an attribute, and not in its output: its backward comes first."""

    aside: torch.Tensor

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = super().forward(x, condition)
        self.aside = self.blocks[1].embed(condition).square().mean()
        return output


def loss_of(called: nn.Module, model: nn.Module, number: int) -> torch.Tensor:
    loss: torch.Tensor = called(*CallsInside.batch(number)).square().mean()
    return loss + model.aside if isinstance(model, Aside) else loss


def train(model: nn.Module, tier: str, keys: dict[str, Any], plain: nn.Module, units: Choice = None) -> list[float]:
    """Losses of an engine, whose first gradients are those of ``plain``. A step has two micro-batches."""
    engine = engine_of(model, config(tier, gradient_accumulation_steps=2, **keys), units=units)
    losses = []
    for number in range(6):
        loss = loss_of(engine, model, number)
        engine.backward(loss)
        if number == 0:
            for name, parameter in model.named_parameters():
                theirs = plain.get_parameter(name).grad
                mine = utils.safe_get_full_grad(parameter)
                assert theirs is None or (mine is not None and torch.equal(mine, theirs)), name
        engine.step()
        losses.append(loss.item())
    assert all(isinstance(each, AbsentParameter) and each.shape == torch.Size([0]) for each in model.parameters())
    with torch.no_grad():
        losses.append(loss_of(engine, model, 6).item())
    engine.destroy()
    return losses


def train_plain(model: type[nn.Module]) -> tuple[nn.Module, list[float]]:
    """Losses, and a model with the gradients of the first micro-batch as an engine has them."""
    first, plain = make(model), make(model)
    (loss_of(first, first, 0) / 2).backward()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.01)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    losses = []
    for number in range(6):
        loss = loss_of(plain, plain, number)
        (loss / 2).backward()
        losses.append(loss.item())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    with torch.no_grad():
        losses.append(loss_of(plain, plain, 6).item())
    return first, losses


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the evaluation
@pytest.mark.parametrize("model", [CallsInside, Before, Between, NotCalled, Checkpointed, Reentrant, Frozen, Shared, Aside])
def test_calls_from_outside_follow_plain_pytorch(model: type[nn.Module]) -> None:
    first, expected = train_plain(model)
    losses = [train(make(model), tier, keys, first) for tier, keys in TIERS]
    assert losses[0][0] == expected[0]
    assert differences(losses[0], expected) < 1e-6
    assert losses[0] == losses[1] == losses[2]


def nested(name: str, module: nn.Module) -> bool:
    return isinstance(module, Conditioned) or name in ("blocks.0.embed", "blocks.1.embed.2")


def test_a_unit_that_is_chosen_inside_another_one_is_a_unit_of_its_own() -> None:
    units = find_units(make(CallsInside), nested)
    assert [unit.name for unit in units] == ["blocks.0", "blocks.0.embed", "blocks.1", "blocks.1.embed.2", "blocks.2", "out"]
    assert [name for name, _ in units[0].params] == ["blocks.0.mix.weight", "blocks.0.mix.bias"]
    assert [name for name, _ in units[2].params][0] == "blocks.1.embed.0.weight" and len(units[2].params) == 4
    assert [name for name, _ in units[3].params] == ["blocks.1.embed.2.weight", "blocks.1.embed.2.bias"]
    assert [unit.inside for unit in units] == [[], [0], [], [2], [], []]
    model = make(CallsInside)
    model.blocks[0].mix.weight = model.blocks[0].embed[0].weight  # tied: in both
    assert [name for name, _ in find_units(model, nested)[0].params] == ["blocks.0.mix.weight", "blocks.0.mix.bias"]


@pytest.mark.parametrize("model", [CallsInside, Before, Between, Checkpointed, Frozen, Shared, FromWithin])
@pytest.mark.parametrize("units", [nested, ["Conditioned", "Sequential", "Linear"], ["ModuleList", "blocks.1"]])
def test_units_inside_units_follow_plain_pytorch(units: Choice, model: type[nn.Module]) -> None:
    first, expected = train_plain(model)
    losses = train(make(model), "cpu", {}, first, units)
    assert losses[0] == expected[0]
    assert differences(losses, expected) < 1e-6


def test_units_are_used_in_one_order_in_every_step_so_they_are_gathered_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(make(Between), config("cpu"))
    owner = owner_of(engine.module.out.weight)
    assert owner is not None
    loop, entered, steps = owner.model.loop, [], []
    gather = loop.enter
    monkeypatch.setattr(loop, "enter", lambda unit, training: (entered.append((unit, training)), gather(unit, training)))
    for number in range(3):
        engine.backward(engine(*CallsInside.batch(number)).square().mean())
        engine.step()
        steps.append(entered.copy())
        entered.clear()
    assert steps[0] == steps[1] == steps[2]
    engine.destroy()


@pytest.mark.parametrize("stage", [1, 3])
def test_two_ranks_train_as_one(stage: int, tmp_path: Path) -> None:
    forked.run_two_ranks(SCRIPT, tmp_path, stage)
    mine = [torch.load(tmp_path / f"losses{rank}.pt") for rank in range(2)]
    keys = config("device", gradient_accumulation_steps=4)
    keys["sluice"]["threads"] = {"compute": 1}
    engine = engine_of(make(CallsInside), keys)
    for number in range(12):
        loss = engine(*CallsInside.batch(number)).square().mean()
        engine.backward(loss)
        engine.step()
        assert mine[number % 2][number // 2] == loss.item()
    engine.destroy()


def test_a_line_of_the_log_says_once_what_is_borrowed_and_why(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make(CallsInside), config("cpu"))
    with caplog.at_level("INFO", "sluice"):
        for number in range(2):
            engine(*CallsInside.batch(number))
    lines = [line for line in caplog.messages if "gathered until the model's forward ends" in line]
    assert len(lines) == 1
    assert lines[0].startswith("blocks.0 is gathered") and "linear of blocks.0.embed.0.weight" in lines[0]
    assert "units=" in lines[0]
    engine.destroy()


class ReturnsAView(CallsInside):
    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.blocks[0].mix.weight.t()


class ReturnsAViewOfAnother(CallsInside):
    """The weight is its unit's own."""

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.out.weight.t()


@pytest.mark.parametrize("model", [ReturnsAView, ReturnsAViewOfAnother])
def test_a_view_that_the_forward_returns_has_memory_of_its_own(model: type[nn.Module]) -> None:
    engine = engine_of(make(model), config("cpu"))
    x, condition = CallsInside.batch(0)
    assert torch.equal(engine(x, condition), make(model)(x, condition))
    engine.destroy()


@dataclass
class Held:
    weight: torch.Tensor


class ReturnsAnObject(CallsInside):
    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> Held:  # type: ignore[override]
        return Held(self.blocks[0].mix.weight.t())


def test_a_view_that_the_forward_returns_in_an_object_is_an_error() -> None:
    engine = engine_of(make(ReturnsAnObject), config("cpu"))
    with pytest.raises(ValueError, match="the model's forward returns a view of a weight inside a Held"):
        engine(*CallsInside.batch(0))
    assert all(parameter.shape == torch.Size([0]) for parameter in engine.module.parameters())
    engine.destroy()


class OfData(CallsInside):
    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.out(x @ self.blocks[0].mix.weight.to(torch.float64).float())


def test_a_tensor_made_of_an_absent_weight_is_an_error_that_names_the_ways_out() -> None:
    engine = engine_of(make(OfData), config("cpu"))
    advice = r"parameter blocks.0.mix.weight: .*every parameter .*register_external_parameter.*units="
    with pytest.raises(RuntimeError, match=advice):
        engine(*CallsInside.batch(0))
    engine.destroy()
