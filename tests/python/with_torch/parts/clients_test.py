"""A client's optimizer and its groups, which an engine or a loop of one's own has taken over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, data, make, mlp, train
from torch import nn

import sluice

Groups = list[dict[str, Any]]


def adamw(groups: Groups) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-2)


# How groups of a script come to their steps. Each returns the optimizer.
WAYS: dict[str, Callable[[nn.Module, Groups], Any]] = {
    "offload": lambda model, groups: sluice.offload(model, config(), optimizer=adamw(groups)),
    "optimizer": lambda model, groups: sluice.initialize(model=model, config=config(), optimizer=adamw(groups))[1],
    "model_parameters": lambda model, groups: sluice.initialize(model=model, config=config(), model_parameters=groups)[1],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_of_another_module_is_refused_unless_it_is_frozen(way: str) -> None:
    model, head = mlp(), nn.Linear(4, 3)
    groups: Groups = [{"params": [*model.parameters(), *head.parameters()]}]
    with pytest.raises(ValueError, match=r"parameter group 0 has a parameter that is not of the model .*number 4, of shape \[3, 4\]"):
        WAYS[way](model, groups)
    head.requires_grad_(False)
    optimizer = WAYS[way](model, groups)
    before = model.state_dict()
    head(model(data(0))).square().mean().backward()
    optimizer.step()
    assert not torch.equal(before["0.weight"], model.state_dict()["0.weight"])


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_of_another_engine_is_refused(way: str) -> None:
    critic = mlp()
    kept = sluice.offload(critic, config())
    actor = mlp()
    with pytest.raises(ValueError, match=r"is not of the model .*of shape \[8, 8\]"):
        WAYS[way](actor, [{"params": [*actor.parameters(), *critic.parameters()]}])
    kept.close()


def test_a_parameter_in_two_groups_is_refused() -> None:
    model = mlp()
    with pytest.raises(ValueError, match=r"parameter 2\.weight is in parameter groups 0 and 1"):
        WAYS["model_parameters"](model, [{"params": list(model.parameters())}, {"params": [model[2].weight]}])


def sgd_keys(momentum: float) -> dict[str, Any]:
    return config(optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": momentum}})


def sgd_ways(momentum: float) -> dict[str, Callable[[nn.Module, Groups], Any]]:
    """As WAYS, with a momentum of all groups that have none of their own."""

    def client(groups: Groups) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=0.1, momentum=momentum)

    keys = sgd_keys(momentum)
    return {
        "offload": lambda model, groups: sluice.offload(model, keys, optimizer=client(groups)),
        "optimizer": lambda model, groups: sluice.initialize(model=model, config=keys, optimizer=client(groups))[1],
        "model_parameters": lambda model, groups: sluice.initialize(model=model, config=keys, model_parameters=groups)[1],
    }


@pytest.mark.parametrize("way", WAYS)
def test_sgd_with_momentum_in_some_groups_is_refused_at_once(way: str) -> None:
    model = mlp()
    for number, (of_all, of_first) in enumerate([(0.9, 0.0), (0.0, 0.9)]):
        groups: Groups = [{"params": list(model[0].parameters()), "momentum": of_first}, {"params": list(model[2].parameters())}]
        with pytest.raises(ValueError, match=r"parameter group \d has momentum=0.*SGD has momentum above 0 in all groups"):
            sgd_ways(of_all)[way](model, groups)
    assert model(data(0)).shape == (4, 4)  # as it was


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("before", "after"), [(0.9, 0.0), (0.0, 0.9)])
def test_a_momentum_that_no_step_can_have_leaves_the_step_to_be_mended(way: str, before: float, after: float) -> None:
    model, plain = mlp(), mlp()
    optimizer = sgd_ways(before)[way](model, [{"params": list(model.parameters())}])
    torchs = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=before)
    for number in range(3):
        for trained, stepped in ((model, optimizer), (plain, torchs)):
            trained(data(number)).square().mean().backward()
            if stepped is optimizer and number == 1:
                stepped.param_groups[0]["momentum"] = after
                with pytest.raises(ValueError, match="parameter group 0 has momentum=.*all groups that train or in none"):
                    stepped.step()
                stepped.param_groups[0]["momentum"] = before
            stepped.step()
        torchs.zero_grad()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-5, atol=1e-7)


def check_as_plain(model: nn.Module, client: torch.optim.Optimizer, plain: nn.Module, plain_optimizer: torch.optim.Optimizer) -> None:
    """Three steps of sluice.offload with a client end where those of PyTorch do."""
    optimizer = sluice.offload(model, config(), optimizer=client)
    for number in range(3):
        for trained, stepped in ((model, optimizer), (plain, plain_optimizer)):
            trained(data(number)).square().mean().backward()
            stepped.step()
        plain_optimizer.zero_grad()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("of_all", "of_groups"), [(0.0, 0.9), (0.9, 0.0)])
def test_the_groups_say_whether_a_client_has_momentum(of_all: float, of_groups: float) -> None:
    model, plain = mlp(), mlp()
    made = [
        torch.optim.SGD([{"params": list(each.parameters()), "momentum": of_groups}], lr=0.1, momentum=of_all)
        for each in (model, plain)
    ]
    check_as_plain(model, made[0], plain, made[1])


def test_a_momentum_of_1e_30_is_none() -> None:
    model, plain = mlp(), mlp()
    made = []
    for each, first in ((model, 1e-30), (plain, 0.0)):
        groups: Groups = [{"params": list(each[0].parameters()), "momentum": first}, {"params": list(each[2].parameters())}]
        made.append(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    check_as_plain(model, made[0], plain, made[1])


@pytest.mark.parametrize("length", ["auto", 10])
def test_a_clients_scheduler_is_in_place_of_the_files(length: Any) -> None:
    """So that "auto" there asks nothing: the Trainer fills it in where it is used."""
    model = make(blocks=1)
    client = torch.optim.AdamW(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LambdaLR(client, lambda step: 1 / (1 + step))
    section = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2, "total_num_steps": length}}
    engine, _, _, returned = sluice.initialize(
        model=model, config=config("device", scheduler=section), optimizer=client, lr_scheduler=schedule
    )
    assert returned is schedule and engine.scheduler_name() == "WarmupDecayLR"
    assert engine.get_lr() == [0.5]
    train(engine, range(1))
    assert engine.get_lr() == [0.25]
    engine.destroy()


@pytest.mark.parametrize("way", ["configuration", "client"])
def test_a_schedule_may_end_below_zero_by_rounding(way: str) -> None:
    model = mlp()
    client = torch.optim.SGD(model.parameters(), lr=1e-3)
    if way == "client":
        schedule = torch.optim.lr_scheduler.LinearLR(client, end_factor=0, total_iters=4)
        engine, optimizer, *_ = sluice.initialize(model=model, config=config(), optimizer=client, lr_scheduler=schedule)
    else:
        section = {"type": "LinearLR", "params": {"end_factor": 0, "total_iters": 4}}
        engine, optimizer, *_ = sluice.initialize(model=model, config=config(scheduler=section), optimizer=client)
    rates = []
    for number in range(6):
        engine.backward(engine(data(number)).square().mean())
        rates += engine.get_lr()
        before = engine.module_state_dict()
        engine.step()
    assert rates[3] > 1e-5 and rates[4] == rates[5] and -1e-12 < rates[5] < 0
    assert all(torch.equal(value, before[name]) for name, value in engine.module_state_dict().items())
    engine.backward(engine(data(0)).square().mean())
    optimizer.param_groups[0]["lr"] = -1e-6
    with pytest.raises(ValueError, match="SGD: learning_rate is -1e-06; it must be finite and at least 0"):
        engine.step()
    assert engine.global_steps == 6
    engine.destroy()


class Counting:
    """A schedule of Megatron's kind: its step() gets a number of samples."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.samples = optimizer, 0

    def step(self, increment: int) -> None:
        self.samples += increment


def test_a_schedule_that_counts_samples_gets_the_batch_size(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    client = adamw([{"params": list(model.parameters())}])
    with caplog.at_level("INFO", "sluice"):
        engine, _, _, schedule = sluice.initialize(model=model, config=config(), optimizer=client, lr_scheduler=Counting)
    assert "Counting.step() needs an argument: it gets the train_batch_size" in caplog.text
    for number, keywords in enumerate([None, {"increment": 5}]):
        engine.backward(engine(data(number)).square().mean())
        engine.step(lr_kwargs=keywords)
    assert schedule.samples == engine.train_batch_size() + 5
    engine.destroy()


def test_a_plateau_needs_its_metrics_before_the_update() -> None:
    model = mlp()
    client = adamw([{"params": list(model.parameters())}])
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(client, factor=0.5, patience=0)
    engine, *_ = sluice.initialize(model=model, config=config(), optimizer=client, lr_scheduler=plateau)
    for number in range(2):
        engine.backward(engine(data(number)).square().mean())
        before = engine.module_state_dict()
        for keywords in (None, {"metric": 1.0}):
            with pytest.raises(TypeError, match=r"ReduceLROnPlateau.step\(metrics, epoch\) is called with .*lr_kwargs={\"metrics\": ...}"):
                engine.step(lr_kwargs=keywords)
        assert (engine.global_steps, engine.micro_steps, engine.was_step_applied()) == (number, number, False)
        assert all(torch.equal(value, before[name]) for name, value in engine.module_state_dict().items())
        engine.step(lr_kwargs={"metrics": 1.0})
    assert engine.global_steps == 2 and engine.get_lr() == [0.005]
    engine.destroy()
