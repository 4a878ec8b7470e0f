"""Client optimizers of every formula, and their parameter groups, against torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import config, differences, engine_of, make, train, train_plain, without_optimizer

import sluice
from sluice.ops.adagrad import DeepSpeedCPUAdagrad
from sluice.ops.adam import DeepSpeedCPUAdam
from sluice.ops.lion import DeepSpeedCPULion

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1),
    "adam": lambda groups: torch.optim.Adam(groups, lr=1e-3, weight_decay=0.1),
    "amsgrad": lambda groups: torch.optim.AdamW(groups, lr=1e-3, amsgrad=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=1e-2, weight_decay=0.01),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=1e-1, weight_decay=0.01),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=1e-2, momentum=0.9, nesterov=True),
}


def groups_of(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Two groups; the second has another rate and no weight decay."""
    wide = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    narrow = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [{"params": wide}, {"params": narrow, "weight_decay": 0.0, "lr": 5e-3}]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_clients_optimizer_with_groups_follows_torch(name: str) -> None:
    plain = make()
    expected = train_plain(plain, OPTIMIZERS[name](groups_of(plain)), range(20))
    model = make()
    engine = engine_of(model, without_optimizer(), optimizer=OPTIMIZERS[name](groups_of(model)))
    mine = train(engine, range(20))
    assert mine[0] == expected[0]
    assert differences(mine, expected) < 2e-6
    assert engine.get_lr() == [engine.optimizer.param_groups[0]["lr"], 5e-3]
    engine.destroy()


def test_groups_change_at_any_step_and_tiers_have_equal_bits(tmp_path: Path) -> None:
    courses = []
    for tier in ("device", "cpu", "nvme"):
        model = make()
        engine = engine_of(
            model, without_optimizer(tier=tier, folder=tmp_path), optimizer=OPTIMIZERS["adamw"](groups_of(model))
        )
        losses = train(engine, range(3))
        engine.optimizer.param_groups[0].update(lr=1e-2, betas=(0.5, 0.9), weight_decay=0.0)
        losses += train(engine, range(3, 6))
        courses.append(losses)
        engine.destroy()
    assert courses[0] == courses[1] == courses[2]
    model = make()
    optimizer = OPTIMIZERS["adamw"](groups_of(model))
    plain = train_plain(model, optimizer, range(3))
    optimizer.param_groups[0].update(lr=1e-2, betas=(0.5, 0.9), weight_decay=0.0)
    plain += train_plain(model, optimizer, range(3, 6))
    assert differences(courses[0], plain) < 2e-6


def test_groups_for_the_configurations_optimizer() -> None:
    plain = make()
    expected = train_plain(plain, torch.optim.AdamW(groups_of(plain), lr=1e-3, weight_decay=0.01), range(10))
    model = make()
    engine, optimizer, _, _ = sluice.initialize(model=model, config=config(), model_parameters=groups_of(model))
    assert differences(train(engine, range(10)), expected) < 2e-6
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.01, 0.0]
    engine.destroy()


def test_groups_of_the_configuration_are_the_optimizers() -> None:
    keys = config()
    keys["sluice"]["no_decay"] = "biases_and_norms"
    engine = engine_of(make(), keys)
    groups = engine.optimizer.param_groups
    assert sorted(group["weight_decay"] for group in groups) == [0, 0.01]
    narrow = next(group["params"] for group in groups if group["weight_decay"] == 0)
    assert all(len(parameter.ds_shape) == 1 for parameter in narrow)
    engine.destroy()


@pytest.mark.parametrize("given", ["optimizer", "model_parameters"])
def test_a_group_in_which_nothing_trains_keeps_its_place(given: str) -> None:
    def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
        model.norm.requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return [{"params": []}, {"params": trained, "lr": 5e-3}, {"params": list(model.norm.parameters())}]

    plain, model = make(), make()
    optimizer = torch.optim.AdamW(groups(plain), lr=1e-3, weight_decay=0.01)
    client = torch.optim.AdamW(groups(model), lr=1e-3, weight_decay=0.01)
    taken = {"optimizer": client} if given == "optimizer" else {"model_parameters": groups(model)}
    engine = engine_of(model, config(), **taken)
    assert engine.get_lr() == [1e-3, 5e-3, 1e-3]
    assert differences(train(engine, range(4)), train_plain(plain, optimizer, range(4))) < 2e-6
    engine.destroy()


def test_a_group_of_another_model_is_named() -> None:
    model = make()
    groups = [{"params": list(model.parameters())}, {"params": list(make().parameters())}]
    with pytest.raises(ValueError, match="parameter group 1 has a parameter that is not of the model"):
        engine_of(model, without_optimizer(), optimizer=torch.optim.AdamW(groups))


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())
    train_plain(model, optimizer, range(1))
    with pytest.raises(ValueError, match="has stepped before"):
        engine_of(model, without_optimizer(), optimizer=optimizer)


@pytest.mark.parametrize("key", ["amsgrad", "maximize"])
def test_a_group_with_a_formula_of_its_own_is_refused(key: str) -> None:
    model = make(blocks=1)
    groups = groups_of(model)
    groups[1][key] = True
    with pytest.raises(ValueError, match=f"parameter group 1 has {key}=True: it is False for all groups"):
        engine_of(model, without_optimizer(), optimizer=torch.optim.AdamW(groups, lr=1e-3))
    with pytest.raises(ValueError, match=f"parameter group 1 has {key}=True"):
        sluice.initialize(model=model, config=config(), model_parameters=groups)
    with pytest.raises(ValueError, match=f"parameter group 1 has {key}=True"):
        sluice.offload(model, without_optimizer(), optimizer=torch.optim.AdamW(groups, lr=1e-3))


FACTS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], dict[str, Any]]] = {
    "amsgrad": (torch.optim.AdamW, {}, {"amsgrad": True}),
    "maximize": (torch.optim.Adam, {}, {"maximize": True}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9}, {"nesterov": True}),
    "lr_decay": (torch.optim.Adagrad, {}, {"lr_decay": 0.5}),
    "decoupled": (torch.optim.Adam, {"weight_decay": 0.3}, {"decoupled_weight_decay": True}),
    "coupled": (torch.optim.AdamW, {"weight_decay": 0.3}, {"decoupled_weight_decay": False}),
    "not any more": (torch.optim.AdamW, {"amsgrad": True}, {"amsgrad": False}),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_of_all_groups_is_the_formulas(name: str) -> None:
    """It counts in PyTorch although the optimizer's defaults have another one."""
    kind, arguments, fact = FACTS[name]
    courses = []
    for way in ("plain", "engine"):
        model = make(blocks=1)
        optimizer = kind(groups_of(model), lr=1e-2, **arguments)
        for group in optimizer.param_groups:
            group.update(fact)
        if way == "plain":
            courses.append(train_plain(model, optimizer, range(10)))
        else:
            engine = engine_of(model, without_optimizer(), optimizer=optimizer)
            courses.append(train(engine, range(10)))
            engine.destroy()
    assert differences(*courses) < 2e-6


def test_a_decay_that_is_decoupled_in_one_group_or_from_a_step_on_is_refused() -> None:
    model = make(blocks=1)
    groups = groups_of(model)
    groups[1]["decoupled_weight_decay"] = True
    with pytest.raises(ValueError, match="parameter group 1 has decoupled_weight_decay=True: it is False for all groups"):
        engine_of(model, without_optimizer(), optimizer=torch.optim.Adam(groups, lr=1e-3))
    engine = engine_of(model, without_optimizer(), optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1))
    train(engine, range(1))
    engine.optimizer.param_groups[0]["decoupled_weight_decay"] = True
    with pytest.raises(ValueError, match="has decoupled_weight_decay=True, which is fixed"):
        train(engine, range(1, 2))
    engine.destroy()


def test_an_optimizers_numbers_may_be_numpys_and_pytorchs() -> None:
    courses = []
    for number in (float, np.float32, torch.tensor):
        model = make(blocks=1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2**-10, betas=(0.875, 0.96875), weight_decay=0.125)
        for key in ("weight_decay", "eps"):
            optimizer.defaults[key] = optimizer.param_groups[0][key] = number(optimizer.defaults[key])
        optimizer.defaults["betas"] = tuple(number(beta) for beta in optimizer.defaults["betas"])
        engine = engine_of(model, without_optimizer(), optimizer=optimizer)
        courses.append(train(engine, range(3)))
        engine.destroy()
    assert courses[0] == courses[1] == courses[2]


@pytest.mark.parametrize(
    ("source", "adam"),
    [(torch.optim.AdamW, True), (torch.optim.Adam, True), (torch.optim.Adagrad, False)],
    ids=["AdamW", "Adam", "Adagrad"],
)
def test_deepspeeds_class_over_pytorchs_groups_has_their_formula(source: Any, adam: bool) -> None:
    """As Accelerate makes it: of the groups, with the rate and the decay of the defaults."""
    facts = {"amsgrad": True} if adam else {"lr_decay": 0.5, "initial_accumulator_value": 0.1}
    facts["maximize"] = True
    plain, model = make(blocks=1), make(blocks=1)
    expected = train_plain(plain, source(groups_of(plain), lr=1e-2, weight_decay=0.1, **facts), range(10))
    given = source(groups_of(model), lr=1e-2, weight_decay=0.1, **facts)
    kind = DeepSpeedCPUAdam if adam else DeepSpeedCPUAdagrad
    client = kind(given.param_groups, lr=1e-2, weight_decay=0.1, adamw_mode=source is torch.optim.AdamW)
    engine = engine_of(model, without_optimizer(), optimizer=client)
    assert differences(train(engine, range(10)), expected) < 2e-6
    engine.destroy()


REFUSED: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], dict[str, Any], str]] = {
    "bias_correction": (torch.optim.AdamW, {"bias_correction": False}, "parameter group 0 has bias_correction=False: it is True for all"),
    "lr_decay": (torch.optim.AdamW, {"lr_decay": 0.5}, "has lr_decay, and AdamW has no such form here: leave it at 0"),
    "maximize": (DeepSpeedCPULion, {"maximize": True}, "has maximize, and Lion has no such form here: leave it at False"),
    "amsgrad": (DeepSpeedCPUAdagrad, {"amsgrad": True}, "has amsgrad, and Adagrad has no such form here: leave it at False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_fact_that_the_class_lacks_is_refused(name: str) -> None:
    kind, fact, problem = REFUSED[name]
    model = make(blocks=1)
    with pytest.raises(ValueError, match=problem):
        engine_of(model, without_optimizer(), optimizer=kind([{**group, **fact} for group in groups_of(model)]))


def test_a_group_may_have_one_parameter_or_names() -> None:
    model = make(blocks=1)
    (_, first), *others = model.named_parameters()
    groups: list[dict[str, Any]] = [{"params": first, "lr": 5e-3}, {"params": others}]
    engine, optimizer, _, _ = sluice.initialize(model=model, config=config(), model_parameters=groups)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, len(others)]
    engine.destroy()


def test_groups_neither_come_later_nor_from_a_state_of_others() -> None:
    model = make(blocks=1)
    engine, optimizer, _, _ = sluice.initialize(model=model, config=config(), model_parameters=groups_of(model))
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="the state has 1 parameter groups, and the optimizer has 2"):
        optimizer.load_state_dict({"param_groups": state["param_groups"][:1]})
    with pytest.raises(ValueError, match="a parameter group comes too late"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert len(optimizer.param_groups) == 2
    train(engine, range(1))
    engine.destroy()
