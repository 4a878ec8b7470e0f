"""A step after a backward that failed takes no part of its gradients."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn

import sluice
from sluice._core import format_bytes

Start = Callable[[nn.Module, dict[str, Any]], Any]
STARTS: dict[str, Start] = {"offload": sluice.offload, "engine": engine_of}


class Failing(nn.Module):
    """Its backward fails between two units, or inside the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.place = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.place == "inside":
            self.blocks[0][0].register_forward_hook(lambda _, __, output: output.register_hook(self.fail) and None)
        for block in self.blocks:
            x = block(x)
            if self.place == "between" and block is self.blocks[0]:
                x.register_hook(self.fail)
        return x

    def fail(self, gradient: torch.Tensor) -> None:
        if self.place:
            raise torch.OutOfMemoryError


@pytest.mark.parametrize("place", ["between", "inside"])
@pytest.mark.parametrize("start", STARTS)
def test_a_step_after_a_failed_backward_has_none_of_its_gradients(
    start: str, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = Failing()
    optimizer = STARTS[start](model, config(optimizer={"type": "SGD", "params": {"lr": 0.1}}))
    before = model.state_dict()
    model.place = place
    with pytest.raises(torch.OutOfMemoryError):
        model(torch.ones(2, 8)).square().mean().backward()
    model.place = ""
    with caplog.at_level(logging.WARNING, "sluice"):
        optimizer.step()
    assert "a backward has failed: the gradients of this step so far are dropped" in caplog.text
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(torch.ones(2, 8)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
@pytest.mark.parametrize("fails", ["forward", "backward"])
def test_an_error_for_memory_says_what_sluice_holds(fails: str) -> None:
    model = Failing()
    engine = engine_of(model, config(optimizer={"type": "SGD", "params": {"lr": 0.1}}))
    model.place = "between"
    with pytest.raises(torch.OutOfMemoryError) as caught:
        if fails == "forward":
            model.blocks[1].register_forward_hook(lambda _, __, output: model.fail(output))
            engine(torch.ones(2, 8))
        else:
            engine.backward(engine(torch.ones(2, 8)).square().mean())
    held = engine.report()["plan"]["planned_bytes"]["device"]
    assert caught.value.__notes__ == [f'Sluice holds {format_bytes(held)} of {engine.device}; "device_bytes" in "sluice" limits it']


class Gathering(nn.Module):
    """Its first block puts a result into a list that is no argument, for the second one."""

    class Inner(nn.Module):
        def __init__(self, aside: list[torch.Tensor], inner: Callable[[], nn.Module]) -> None:
            super().__init__()
            self.inner, self.aside = inner(), aside

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x + sum(self.aside))
            self.aside.append(y)
            return x

    def __init__(self, inner: Callable[[], nn.Module]) -> None:
        super().__init__()
        aside: list[torch.Tensor] = []
        self.first, self.aside = nn.Linear(8, 8), aside
        self.blocks = nn.ModuleList(self.Inner(aside, inner) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.aside.clear()
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x + self.aside[-1]


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes before Python 3.11")
def test_a_tensor_that_leaves_its_unit_by_a_list_is_an_error_with_its_cause() -> None:
    engine = engine_of(Gathering(Scale))
    loss = engine(torch.ones(2, 8)).square().mean()
    with pytest.raises(RuntimeError) as found:
        engine.backward(loss)
    assert "return it from the unit's forward" in "".join(found.value.__notes__).lower()
    engine.destroy()


@pytest.mark.parametrize("bias", [True, False])
def test_a_gradient_of_a_tensor_that_leaves_its_unit_by_a_list_names_the_unit(bias: bool) -> None:
    engine = engine_of(Gathering(lambda: nn.Linear(8, 8, bias=bias)))
    loss = engine(torch.ones(2, 8)).square().mean()
    with pytest.raises(RuntimeError, match=r"from outside its unit's backward.* of unit blocks\.1 are not here.* Return it from the unit's forward"):
        engine.backward(loss)
    engine.destroy()


def test_another_error_of_a_backward_has_no_note_of_units() -> None:
    engine = engine_of(Failing())
    engine.module.place = "between"
    with pytest.raises(torch.OutOfMemoryError) as found:
        engine.backward(engine(torch.ones(2, 8)).square().mean())
    assert "unit" not in "".join(getattr(found.value, "__notes__", []))
    engine.destroy()
