"""Arguments of the wrong type or without a value: one error, which names the argument and not Python's insides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, engine_of, make, train, without_optimizer
from torch import nn

import sluice
from sluice import utils

WIDTH = 4


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))


def with_meta_buffer() -> nn.Module:
    model = small()
    model[1].register_buffer("scale", torch.ones(2, device="meta"))
    return model


def with_view_of_weight() -> nn.Module:
    model = small()
    model[0].register_buffer("key", model[0].weight.detach().t())
    return model


def over_one_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[1].weight.data = model[0].weight.data
    return model


class Rows(nn.Module):
    """Two parameters that are views of one matrix."""

    def __init__(self, first: Any, second: Any) -> None:
        super().__init__()
        whole = torch.randn(2 * WIDTH, 2 * WIDTH)
        self.first, self.second = nn.Parameter(whole[first]), nn.Parameter(whole[second])

    def forward(self) -> torch.Tensor:
        return self.first.square().sum() + self.second.sin().sum()


UPPER, LEFT, RIGHT = slice(WIDTH), (slice(None), slice(WIDTH)), (slice(None), slice(WIDTH, None))
OVERLAPPING: dict[str, tuple[Any, Any]] = {
    "rows": (UPPER, slice(WIDTH - 1, None)),
    "a row inside": (slice(None), slice(3, 4)),
    "columns": (LEFT, (slice(None), slice(WIDTH - 1, None))),
    "rows and columns": (UPPER, RIGHT),
}
APART: dict[str, tuple[Any, Any]] = {
    "rows": (UPPER, slice(WIDTH, None)),
    "columns": (LEFT, RIGHT),
    "every second row": (slice(0, None, 2), slice(1, None, 2)),
}


class AdamW(torch.optim.Optimizer):
    """Another formula under the name of PyTorch's."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})


MODELS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a class": (lambda: nn.Linear, TypeError, "is the class Linear itself: expected a torch.nn.Module"),
    "a number": (lambda: 5, TypeError, "is of class int: expected a torch.nn.Module"),
    "a function": (lambda: small, TypeError, "is of class function: expected a torch.nn.Module"),
    "a buffer without values": (with_meta_buffer, ValueError, "buffer 1.scale is on the meta device"),
    "a lazy parameter": (lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)), ValueError, "0.weight has no shape yet"),
    "a script": (lambda: torch.jit.script(small()), ValueError, "ScriptModule, which takes no hooks"),
    "a buffer over a weight": (with_view_of_weight, ValueError, "buffer 0.key is over the memory of parameter 0.weight"),
    "two over one memory": (over_one_memory, ValueError, "parameters 0.weight and 1.weight are over the same memory"),
    "a name in no encoding": (lambda: named("a\udcff"), ValueError, r"the name 'a\\udcff.weight' is no UTF-8"),
    "a long name": (lambda: named("a" * 241), ValueError, "the name of a unit has 241 bytes, and checkpoints take 1 to 240: \"aaa"),
    "sparse": (lambda: sparse(), ValueError, "parameter weight is not a dense tensor"),
}


def named(name: str) -> nn.Module:
    model = nn.Sequential()
    model.add_module(name, nn.Linear(WIDTH, 1))
    return model


class AnswersAll(nn.Module):
    """As a module that looks up any name elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return lambda *_: name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_a_module_may_answer_to_any_name() -> None:
    engine = engine_of(nn.Sequential(AnswersAll(), nn.Linear(WIDTH, 1)))
    engine.backward(engine(torch.ones(2, WIDTH)).sum())
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def test_the_longest_name_has_a_checkpoint(tmp_path: Path) -> None:
    engine = engine_of(named("a" * 240))
    engine.save_checkpoint(tmp_path)
    assert engine.load_checkpoint(tmp_path)[0] is not None
    engine.destroy()


@pytest.mark.parametrize("optimizer", ["AdamW", "Adagrad"])
def test_a_state_of_squares_takes_no_negative_values(optimizer: str) -> None:
    model = small()
    engine = engine_of(model, config(optimizer={"type": optimizer, "params": {"lr": 1e-3}}))
    weight, key = model[0].weight, "exp_avg_sq"
    before = utils.safe_get_full_optimizer_state(weight, key)
    with pytest.raises(ValueError, match=f"values for {key} of parameter 0.weight are sums of squares, and some are negative"):
        utils.safe_set_full_optimizer_state(weight, torch.full((WIDTH, WIDTH), -1e-9), key)
    assert torch.equal(utils.safe_get_full_optimizer_state(weight, key), before)
    engine.destroy()


def sparse() -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    model.weight = nn.Parameter(model.weight.detach().to_sparse())
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("start", [lambda model: engine_of(model), lambda model: sluice.offload(model, config())])
def test_a_wrong_model(case: str, start: Callable[[Any], Any]) -> None:
    make_model, error, message = MODELS[case]
    with pytest.raises(error, match=message):
        start(make_model())


@pytest.mark.parametrize("case", ["a class", "a lazy parameter", "a script"])
@pytest.mark.filterwarnings("ignore")
def test_a_plan_refuses_it_too(case: str) -> None:
    make_model, error, message = MODELS[case]
    with pytest.raises(error, match=message):
        sluice.plan(make_model(), config())


@pytest.mark.parametrize("case", OVERLAPPING)
@pytest.mark.parametrize("is_turned", [False, True])
def test_parameters_that_share_some_memory_are_refused(case: str, is_turned: bool) -> None:
    slices = OVERLAPPING[case][::-1] if is_turned else OVERLAPPING[case]
    with pytest.raises(ValueError, match="parameters first and second are over the same memory"):
        engine_of(Rows(*slices))


@pytest.mark.parametrize("case", APART)
def test_parts_of_a_matrix_that_share_no_memory_train(case: str) -> None:
    model = Rows(*APART[case])
    first, second = model.first.detach().clone(), model.second.detach().clone()
    engine = engine_of(model)
    torch.testing.assert_close(engine().item(), (first.square().sum() + second.sin().sum()).item())
    engine.destroy()


def test_a_tied_parameter_is_over_one_memory() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[1].weight = model[0].weight
    engine_of(model).destroy()


def test_frozen_parameters_may_be_over_one_memory() -> None:
    model = nn.Sequential(over_one_memory().requires_grad_(False), nn.Linear(WIDTH, 1))
    engine_of(model).destroy()


ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "optimizer, a number": ({"optimizer": 5}, TypeError, "optimizer is of class int: expected a torch.optim.Optimizer"),
    "optimizer, a name": ({"optimizer": "AdamW"}, TypeError, "optimizer is of class str"),
    "optimizer, a function of nothing": ({"optimizer": lambda parameters: 1}, TypeError, "optimizer is of class int"),
    "optimizer, a formula of its own": ({"optimizer": AdamW}, ValueError, "wrong_arguments_test.AdamW has no betas"),
    "parameters, a number": ({"model_parameters": 5}, TypeError, "model_parameters is of class int"),
    "parameters, a string": ({"model_parameters": "abc"}, TypeError, "model_parameters is of class str"),
    "parameters, a tensor": ({"model_parameters": torch.ones(3)}, TypeError, "model_parameters is of class Tensor"),
    "parameters, a module": ({"model_parameters": nn.Linear(1, 1)}, TypeError, "model_parameters is of class Linear"),
    "parameters, modules": ({"model_parameters": small()}, TypeError, r"model_parameters\[0\] is of class Linear: expected a parameter"),
    "parameters, lists": ({"model_parameters": [[1]]}, TypeError, r"model_parameters\[0\] is of class list"),
    "a group without parameters": ({"model_parameters": [{"lr": 1}]}, ValueError, r'model_parameters\[0\] has no "params"'),
    "a group with a number": (
        {"model_parameters": [{"params": 5}]},
        TypeError,
        r'model_parameters\[0\]\["params"\] is of class int: expected a list of parameters',
    ),
    "a group and a number": (
        {"model_parameters": [{"params": []}, 5]},
        TypeError,
        r"model_parameters\[1\] is of class int: expected a group",
    ),
    "schedule, a number": ({"lr_scheduler": 5}, TypeError, "lr_scheduler is of class int: expected an object with step"),
    "schedule, a name": ({"lr_scheduler": "x"}, TypeError, "lr_scheduler is of class str"),
    "schedule, a function of nothing": ({"lr_scheduler": lambda made: None}, TypeError, "what the function lr_scheduler returns is None"),
    "schedule, a class with arguments": ({"lr_scheduler": torch.optim.lr_scheduler.StepLR}, TypeError, "'step_size'"),
    "collate_fn": ({"collate_fn": 5}, TypeError, "collate_fn is of class int: expected a function"),
    "units, a number": ({"units": 5}, TypeError, "units is of class int: expected names of modules, or classes"),
    "units, numbers": ({"units": ["Linear", 1]}, TypeError, r"units\[1\] is of class int: expected the name of a module"),
    "resume": ({"resume": "x"}, TypeError, "resume is of class str: expected True, False or None"),
    "no data": ({"training_data": []}, ValueError, "the training data have no sample"),
    "config, a number": ({"config": 5}, TypeError, "the configuration is of class int: expected a path, a dict"),
    "config, a list": ({"config": [1]}, TypeError, "the configuration is of class list: expected a path, a dict"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_a_wrong_argument_of_initialize(case: str) -> None:
    arguments, error, message = ARGUMENTS[case]
    model = small()
    with pytest.raises(error, match=message):
        sluice.initialize(**{"model": model, "config": config(), **arguments})
    engine_of(model).destroy()  # it is as it was


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lr", "a", "parameter group 0 has lr='a': expected a number"),
        ("lr", None, "parameter group 0 has lr=None: expected a number"),
        ("weight_decay", "a", "parameter group 0 has weight_decay='a': expected a number"),
        ("betas", (0.1, 0.2, 0.3), "parameter group 0 has betas=.*: expected two numbers"),
    ],
)
def test_a_value_of_a_group_that_is_no_number(key: str, value: Any, message: str) -> None:
    model = small()
    with pytest.raises(ValueError, match=message):
        engine_of(model, model_parameters=[{"params": list(model.parameters()), key: value}])


CHANGES: dict[str, tuple[Callable[[list[dict[str, Any]]], Any], str]] = {
    "no rate": (lambda groups: groups[0].pop("lr"), "parameter group 0 has no lr any more"),
    "no groups": (lambda groups: groups.clear(), "has 0 parameter groups, and had 1"),
    "more groups": (lambda groups: groups.append({"params": [], "lr": 1.0}), "has 2 parameter groups, and had 1"),
    "no number": (lambda groups: groups[0].update(lr="a"), "parameter group 0 has lr='a'"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_groups_that_are_changed_later(case: str) -> None:
    change, message = CHANGES[case]
    engine = engine_of(make(blocks=1))
    groups = engine.optimizer.param_groups
    before = [dict(group) for group in groups]
    change(groups)
    with pytest.raises(ValueError, match=message):
        train(engine, range(1))
    groups[:] = before
    engine.step()  # of the gradients that are there
    assert engine.global_steps == 1
    engine.destroy()


def test_a_class_of_a_scheduler_is_called_with_the_optimizer() -> None:
    engine, optimizer, _, scheduler = sluice.initialize(
        model=small(), config=config(), lr_scheduler=sluice.runtime.lr_schedules.WarmupLR
    )
    assert isinstance(scheduler, sluice.runtime.lr_schedules.WarmupLR)
    assert scheduler.optimizer is optimizer
    engine.destroy()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [(5, "optimizer is of class int"), (torch.optim.AdamW, "optimizer is the class AdamW itself")],
)
def test_an_optimizer_of_a_loop_of_ones_own(optimizer: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sluice.offload(small(), config(), optimizer=optimizer)


@pytest.mark.parametrize("section", [{}, {"optimizer": None}])
def test_a_loop_of_ones_own_needs_an_optimizer_where_something_trains(section: dict[str, Any]) -> None:
    keys = without_optimizer()
    with pytest.raises(ValueError, match="sluice.offload needs an optimizer"):
        sluice.offload(small(), {**keys, **section})
    frozen = small().requires_grad_(False)
    optimizer = sluice.offload(frozen, {**keys, **section})
    assert frozen(torch.ones(2, WIDTH)).shape == (2, 1)
    optimizer.close()


def test_paths_of_a_loop_of_ones_own(tmp_path: Path) -> None:
    model, keys = small(), config("nvme", tmp_path)
    for name in ("offload_param", "offload_optimizer"):
        keys["zero_optimization"][name]["nvme_path"] = tmp_path
    optimizer = sluice.offload(model, keys)
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.save_checkpoint(tmp_path / "saved")
    assert optimizer.load_checkpoint(tmp_path / "saved") == 1
    for call in (optimizer.save_checkpoint, optimizer.load_checkpoint):
        with pytest.raises(TypeError, match="folder is of class int: expected a path"):
            call(5)  # type: ignore[arg-type]
    optimizer.close()


def test_values_that_are_no_tensors() -> None:
    model = small()
    engine = engine_of(model)
    parameter, values = model[0].weight, [1, 2]
    for call in (
        lambda: utils.safe_set_full_fp32_param(parameter, values),  # type: ignore[arg-type]
        lambda: utils.safe_set_full_optimizer_state(parameter, values, "exp_avg"),  # type: ignore[arg-type]
        lambda: utils.safe_set_full_grad(parameter, values),  # type: ignore[arg-type]
        lambda: utils.safe_set_local_fp32_param(parameter, values),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="value is of class list: expected a torch.Tensor"):
            call()
    with pytest.raises(ValueError, match="no parameter of an engine"):
        utils.safe_get_full_fp32_param(5)  # type: ignore[arg-type]
    engine.destroy()


def test_classes_of_leaf_modules_that_are_none() -> None:
    for wanted, message in ((5, "leaf_module_classes is of class int"), ([1], r"leaf_module_classes\[0\] is of class int")):
        with pytest.raises(TypeError, match=message):
            utils.set_z3_leaf_modules(small(), wanted)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="model is of class int"):
        utils.set_z3_leaf_modules(5, [nn.Linear])  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "message"), [("null", "expected a JSON object"), ("[" * 100_000, "nested deeper than 64")])
def test_a_file_of_no_object(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(text)
    for start in (lambda: sluice.initialize(model=small(), config=path), lambda: sluice.offload(small(), path)):
        with pytest.raises(sluice.config.ConfigError, match=message):
            start()


def test_a_section_of_null_is_no_optimizer_for_an_engine() -> None:
    engine = engine_of(small(), config(optimizer=None))
    with pytest.raises(ValueError, match='no "optimizer" section'):
        engine.backward(engine(torch.ones(2, WIDTH)).sum())
    engine.destroy()
