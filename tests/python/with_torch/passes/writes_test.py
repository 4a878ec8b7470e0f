"""Writes in place to weights in a forward or backward are errors: on the tiers they would give different numbers."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import Block, MEMORY_OF_ITS_OWN, Tied, WIDTH, batch, config, engine_of, loss_of, make, train
from torch import nn

import sluice

Write = Callable[[nn.Parameter], Any]

WRITES: dict[str, Write] = {
    "clamped": lambda weight: weight.clamp_(0, 0.5),
    "copied to": lambda weight: weight.copy_(nn.functional.normalize(weight.data.clone(), dim=0)),
    "scaled": lambda weight: weight.mul_(0.9),
    "an item": lambda weight: weight.__setitem__(0, 0.0),
    "detached": lambda weight: weight.detach().fill_(0.5),
    "a view": lambda weight: weight[1:].zero_(),
    "equal values": lambda weight: weight.clamp_(-1e9, 1e9),
}


class Writing(nn.Module):
    """Writes to a parameter of its own, or of another unit."""

    def __init__(self, write: Write, written: str = "scale", trains: bool = True) -> None:
        super().__init__()
        self.inner, self.teacher = nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16), requires_grad=trains)
        self.teacher.requires_grad_(False)
        self.written, self.write = written, write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.write(self.get_parameter(self.written))
        return (self.inner(x) * self.scale - self.teacher(x)).square().mean()


def refused(name: str, unit: str, where: str = "forward") -> Any:
    found = f"parameter {name} of unit {unit} was written to in place in a {where}, and the write would be lost: "
    return pytest.raises(ValueError, match=re.escape(found) + "write between steps.*GatheredParameters.*safe_set_full_fp32_param")


@pytest.mark.parametrize("tier", ["device", "cpu", "nvme", "memory of its own"])
def test_a_write_to_a_weight_in_the_forward_of_its_unit_is_an_error_on_every_tier(tier: str, tmp_path: Path) -> None:
    keys = {"sluice": MEMORY_OF_ITS_OWN} if tier == "memory of its own" else {}
    engine = engine_of(make(Writing, write=WRITES["clamped"]), config("cpu" if keys else tier, tmp_path, **keys))
    with refused("scale", "Writing"):
        engine(torch.ones(2, 16))
    engine.destroy()


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("trains", [True, False])
def test_every_write_is_seen(what: str, trains: bool) -> None:
    engine = engine_of(make(Writing, write=WRITES[what], trains=trains))
    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode, refused("scale", "Writing"):
            engine(torch.ones(2, 16))
    assert all(parameter.numel() == 0 for parameter in engine.module.parameters())
    engine.module.write = lambda weight: None  # type: ignore[assignment]
    engine.backward(engine(torch.ones(2, 16)))
    engine.step()
    engine.destroy()


class Student(nn.Module):
    """Its blocks move those of a teacher, which its forward uses too."""

    def __init__(self, registers: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(16)])
        self.teachers = nn.ModuleList([copy.deepcopy(self.blocks[0])]).requires_grad_(False)
        for parameter in self.parameters() if registers else ():
            sluice.zero.register_external_parameter(self, parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for old, new in zip(self.teachers.parameters(), self.blocks.parameters()):
                old.mul_(0.9).add_(new, alpha=0.1)
        return (self.blocks[0](x) - self.teachers[0](x)).square().mean()


def test_a_write_to_a_registered_weight_is_an_error() -> None:
    engine = engine_of(make(Student))
    with refused("teachers.0.norm.weight", "teachers.0"):
        engine(torch.ones(2, 16))
    engine.destroy()


def test_a_write_to_a_weight_that_is_not_there_is_not_told_to_register_it() -> None:
    engine = engine_of(make(Student, registers=False))
    with pytest.raises(RuntimeError, match=r"^mul_ of parameter teachers.0.norm.weight: .*a write is lost: write between"):
        engine(torch.ones(2, 16))
    weight = engine.module.teachers[0].up.weight
    other = torch.ones(64, 16)
    writes: list[Write] = [lambda one: one.copy_(one), lambda one: one.__setitem__(0, 1), lambda one: setattr(one, "data", other)]
    engine.module.forward = lambda x: engine.module.blocks[0](x)  # type: ignore[method-assign]
    for use in writes:
        handle = engine.module.blocks[0].register_forward_pre_hook(lambda module, inputs, use=use: use(weight) and None)
        with torch.no_grad(), pytest.raises(RuntimeError, match="write between steps"):
            engine(torch.ones(2, 16))
        handle.remove()

    def read(module: nn.Module, inputs: Any) -> None:
        other.copy_(weight)

    engine.module.blocks[0].register_forward_pre_hook(read)
    with torch.no_grad():
        engine(torch.ones(2, 16))  # a read gathers it
    assert torch.equal(other, make(Student).teachers[0].up.weight)
    engine.destroy()


@pytest.mark.parametrize("unit", ["blocks.0", ""])  # its backward ends at its inputs, or with the whole backward
def test_an_optimizer_in_backward_is_an_error(unit: str) -> None:
    engine = engine_of(make())
    name = f"{unit}.up.weight" if unit else "embedding.weight"
    weight = engine.module.get_parameter(name)
    def descend(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(1e-3)

    handle = weight.register_post_accumulate_grad_hook(descend)
    ids, targets = batch(0)
    with refused(name, unit or "embedding", "backward"):
        engine.backward(loss_of(engine(ids), targets))
    handle.remove()
    train(engine, range(1))
    engine.destroy()


@pytest.mark.parametrize("tier", ["device", "cpu", "nvme", "memory of its own"])
def test_other_values_through_data_in_a_backward_are_an_error(tier: str, tmp_path: Path) -> None:
    keys = {"sluice": MEMORY_OF_ITS_OWN} if tier == "memory of its own" else {}
    engine = engine_of(make(), config("cpu" if keys else tier, tmp_path, **keys))

    def halve(parameter: torch.Tensor) -> None:
        parameter.data = parameter.data * 0.5

    handle = engine.module.get_parameter("blocks.0.up.weight").register_post_accumulate_grad_hook(halve)
    ids, targets = batch(0)
    expected = r"parameter blocks.0.up.weight of unit blocks.0 was given other values through .data in a backward"
    with pytest.raises(ValueError, match=expected):
        engine.backward(loss_of(engine(ids), targets))
    handle.remove()
    train(engine, range(1))
    engine.destroy()


def test_an_optimizer_that_steps_in_hooks_and_drops_the_gradients_is_an_error_that_says_so() -> None:
    engine = engine_of(make())
    weight = engine.module.get_parameter("blocks.0.up.weight")
    inner = torch.optim.SGD([weight], lr=1e-3)

    def step(parameter: torch.Tensor) -> None:
        inner.step()
        inner.zero_grad()

    handle = weight.register_post_accumulate_grad_hook(step)
    ids, targets = batch(0)
    with pytest.raises(ValueError, match=r"^the gradient of blocks.0.up.weight was removed .* set .optimizer_in_backward. instead"):
        engine.backward(loss_of(engine(ids), targets))
    handle.remove()
    train(engine, range(1))
    engine.destroy()


def test_a_write_in_steps_layer_by_layer_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    engine = engine_of(model, config(gradient_accumulation_steps=2))
    forward = model[1].forward

    def writing(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model[1].bias.add_(1)
        return forward(x)

    model[1].forward = writing  # type: ignore[method-assign]
    pair = torch.ones(2, 16), torch.zeros(2, 16)
    with refused("1.bias", "1"):
        engine.train_batch(iter([pair] * 2), loss_fn=nn.functional.mse_loss, by_layer=True)
    model[1].forward = forward  # type: ignore[method-assign]
    engine.train_batch(iter([pair] * 2), loss_fn=nn.functional.mse_loss, by_layer=True)
    engine.destroy()


class Rescaled(Tied):
    """A frozen table whose rows are rescaled by its own forward, and blocks in every way in which they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, WIDTH, max_norm=0.5).requires_grad_(False)
        self.blocks[0].up = nn.utils.parametrizations.weight_norm(self.blocks[0].up)
        self.blocks[1].up = nn.utils.spectral_norm(self.blocks[1].up)
        self.blocks[2].compile(backend="aot_eager")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position + self.table(ids)
        x = torch.utils.checkpoint.checkpoint(self.blocks[0], x, use_reentrant=True)
        x = torch.utils.checkpoint.checkpoint(self.blocks[1], self.blocks[0](x), use_reentrant=False)
        doubled = {"weight": 2 * self.norm.weight, "bias": 2 * self.norm.bias}
        return self.head(torch.func.functional_call(self.norm, doubled, (self.blocks[2](x),)))


def test_a_forward_that_writes_to_no_weight_is_none() -> None:
    engine = engine_of(make(Rescaled))
    train(engine, range(2))
    with torch.inference_mode():
        engine(batch(0)[0])
    with sluice.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0), torch.no_grad():
        engine.module.position.zero_()
    train(engine, range(2, 3))
    engine.destroy()


class Doubled(nn.Module):
    def __init__(self, right_inverse: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        if right_inverse is not None:
            self.right_inverse = right_inverse

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


class Parametrized(nn.Module):
    """Its forward registers a parametrization and removes it, as PEFT's LoRA of parameters does."""

    right_inverse: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nn.utils.parametrize.register_parametrization(self.inner, "weight", Doubled(self.right_inverse))
        try:
            return self.inner(x)
        finally:
            nn.utils.parametrize.remove_parametrizations(self.inner, "weight", leave_parametrized=False)


class OfParametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Parametrized() for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.utils.checkpoint.checkpoint(self.blocks[0], x, use_reentrant=False)
        return self.blocks[1](x).square().mean()


@pytest.mark.parametrize("keys", [{}, {"sluice": MEMORY_OF_ITS_OWN}], ids=["host", "memory of its own"])
def test_a_parametrization_that_a_forward_registers_is_no_write(keys: dict[str, Any]) -> None:
    plain = make(OfParametrized)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    engine = engine_of(make(OfParametrized), config(**keys))
    for _ in range(3):
        expected = plain(torch.ones(2, 16))
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = engine(torch.ones(2, 16))
        engine.backward(loss)
        engine.step()
        assert abs(float(loss.detach() / expected.detach()) - 1) < 1e-6
    engine.destroy()


def test_a_parametrization_that_changes_the_values_is_a_write() -> None:
    engine = engine_of(make(OfParametrized))
    engine.module.blocks[1].right_inverse = lambda weight: weight / 2  # type: ignore[assignment]
    with pytest.raises(ValueError, match="parameter blocks.1.inner.weight of unit blocks.1 was given other values"):
        engine(torch.ones(2, 16))
    engine.destroy()


def test_writes_inside_gathered_parameters_are_those_of_the_context() -> None:
    engine = engine_of(make(Writing, write=WRITES["clamped"]))
    parameter = engine.module.scale
    with torch.no_grad(), sluice.zero.GatheredParameters([parameter], modifier_rank=0):
        engine(torch.ones(2, 16))
    assert torch.equal(engine.module_state_dict()["scale"], torch.full((16,), 0.5))
    engine.destroy()
