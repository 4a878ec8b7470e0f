"""A client's own optimizer object, after an engine or a loop of one's own has taken it over."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, data, engine_of, mlp
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import sluice

# Each returns what ends a step.
WAYS: dict[str, Callable[..., Any]] = {"offload": sluice.offload, "engine": engine_of}


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def scheduler_of(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scheduled", ["before", "after"])
def test_a_script_may_go_on_with_its_own_object(way: str, scheduled: str) -> None:
    def course(taken: bool) -> dict[str, torch.Tensor]:
        model = mlp()
        client = adamw(model)
        schedule = scheduler_of(client) if scheduled == "before" else None
        if taken:
            WAYS[way](model, config(), optimizer=client)  # and nothing is kept of it
        schedule = schedule or scheduler_of(client)
        for number in range(3):
            model(data(number + 9)).sum().backward()
            client.zero_grad()
            model(data(number)).square().mean().backward()
            client.step()
            schedule.step()
            client.zero_grad()
        return model.state_dict()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, mine = course(False), course(True)
    for name, value in mine.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("way", WAYS)
def test_its_load_state_dict_leaves_the_groups_to_its_scheduler(way: str) -> None:
    model = mlp()
    client = adamw(model)
    saved = copy.deepcopy(client.state_dict())
    schedule = scheduler_of(client)
    ended = WAYS[way](model, config(), optimizer=client)
    client.param_groups[0]["lr"] = 0.5
    client.load_state_dict(saved)
    optimizer = getattr(ended, "optimizer", ended)
    for rate in (0.01, 0.005, 0.0025):
        assert client.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == rate
        model(data(0)).square().mean().backward()
        ended.step()
        schedule.step()
    assert client.state_dict() == optimizer.state_dict()
    with pytest.raises(ValueError, match="a parameter group comes too late"):
        client.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    client.param_groups = list(client.param_groups)
    with pytest.raises(ValueError, match="have different lists of parameter groups"):
        ended.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", ["client before", "client after", "optimizer"])
@pytest.mark.parametrize("by", ["client", "optimizer", "engine"])
def test_hooks_of_a_step_run_once_with_each_step(way: str, of: str, by: str) -> None:
    model = mlp()
    client = adamw(model)
    calls: list[str] = []

    def register(optimizer: torch.optim.Optimizer) -> None:
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append(f"after {weights()}"))

    def weights() -> bool:
        return not torch.equal(before, model.state_dict()["0.weight"])

    if of == "client before":
        register(client)
    ended = WAYS[way](model, config(gradient_accumulation_steps=2), optimizer=client)
    optimizer = getattr(ended, "optimizer", ended)
    if of != "client before":
        register(client if of == "client after" else optimizer)
    before = model.state_dict()["0.weight"]
    for part in range(2):
        model(data(part)).square().mean().backward()
        if way == "engine" or part == 1:
            {"client": client, "optimizer": optimizer, "engine": ended}[by].step()
    assert calls == ["before", "after True"]


def test_global_hooks_run_with_a_step_of_an_engine() -> None:
    calls: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
    model = mlp()
    engine = engine_of(model, config())
    engine.backward(engine(data(0)).square().mean())
    engine.step()
    handle.remove()
    assert calls == [engine.optimizer]
    engine.destroy()


def no_schedule(_: Any) -> Any:
    raise ZeroDivisionError


def test_after_an_initialize_that_failed_it_steps_by_itself() -> None:
    model = mlp()
    client = adamw(model)
    with pytest.raises(ZeroDivisionError):
        engine_of(model, config(), optimizer=client, lr_scheduler=no_schedule)
    before = model[0].weight.detach().clone()
    model(data(0)).square().mean().backward()
    client.step()
    assert not torch.equal(before, model[0].weight)


def test_after_the_end_a_step_is_an_error() -> None:
    model = mlp()
    client = adamw(model)
    sluice.offload(model, config(), optimizer=client).close()
    with pytest.raises(ValueError, match="the engine was destroyed"):
        client.step()


def test_what_a_client_keeps_is_gone_with_it() -> None:
    model = mlp()
    client = adamw(model)
    gone = weakref.ref(sluice.offload(model, config(), optimizer=client))
    assert gone() is not None
    gc.disable()
    try:
        del client
        assert gone() is None
    finally:
        gc.enable()
