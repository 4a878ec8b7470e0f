"""Gradients that a script drops with zero_grad(), and passes that no engine can follow."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, data, engine_of
from torch import nn
from torch.autograd import forward_ad

import sluice


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


def plain_of(model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    twin = copy.deepcopy(model)
    return twin, torch.optim.AdamW(twin.parameters(), lr=1e-3, weight_decay=0.01)


def assert_equal_weights(model: nn.Module, plain: nn.Module) -> None:
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], rtol=1e-5, atol=1e-7)


def test_the_models_own_zero_grad_drops_gradients() -> None:
    model = mlp()
    plain, plain_optimizer = plain_of(model)
    optimizer = sluice.offload(model, config())
    for number in range(3):
        for each, steps in ((model, optimizer), (plain, plain_optimizer)):
            each(data(number)).sum().backward()
            each.zero_grad()
            each(data(number + 10)).square().sum().backward()
            steps.step()
            each.zero_grad()
    assert_equal_weights(model, plain)
    optimizer.close()
    assert "zero_grad" not in vars(model)


def set_to_none(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def delete_last(model: nn.Module) -> None:
    del model[-1].weight.grad


def zero_first(model: nn.Module) -> None:
    model[0].zero_grad()


@pytest.mark.parametrize("drop", [set_to_none, delete_last, zero_first])
@pytest.mark.parametrize("tier", ["cpu", "nvme"])
def test_gradients_of_single_parameters_are_dropped(drop: Callable[[nn.Module], None], tier: str, tmp_path: Path) -> None:
    model = mlp()
    plain, plain_optimizer = plain_of(model)
    optimizer = sluice.offload(model, config(tier, tmp_path))
    for number in range(3):
        for each, steps in ((model, optimizer), (plain, plain_optimizer)):
            drop(each)  # there is none
            each(data(number)).sum().backward()
            drop(each)
            each(data(number + 10)).square().sum().backward()
            steps.step()
            steps.zero_grad()
    assert_equal_weights(model, plain)
    optimizer.close()
    assert not any("zero_grad" in vars(module) for module in model.modules())


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian])
def test_a_transform_that_differentiates_is_refused_and_changes_nothing(transform: Callable[..., Any]) -> None:
    model = mlp()
    plain, plain_optimizer = plain_of(model)
    optimizer = sluice.offload(model, config())
    with pytest.raises(ValueError, match=r"torch\.autograd\.grad"):
        transform(lambda x: model(x).sum())(data(0))
    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(model)(data(1)), plain(data(1)))
    for each, steps in ((model, optimizer), (plain, plain_optimizer)):
        each(data(2)).square().sum().backward()
        steps.step()
    assert_equal_weights(model, plain)
    optimizer.close()


class PartlyMapped(nn.Module):
    """vmap over the second of two units, where either may be frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: self.layers[1](row))(self.layers[0](x).tanh())


@pytest.mark.parametrize("frozen", [None, 0, 1])
def test_a_unit_inside_vmap_is_refused_where_gradients_would_pass_it(frozen: int | None) -> None:
    torch.manual_seed(0)
    model = PartlyMapped()
    if frozen is not None:
        model.layers[frozen].requires_grad_(False)
    plain, _ = plain_of(model)
    engine = engine_of(model)
    with pytest.raises(ValueError, match=r"torch\.func\.vmap over layers\.1 .* whole batch in place of vmap, or inside torch\.no_grad\(\)"):
        engine(data(0))
    with torch.no_grad():
        torch.testing.assert_close(engine(data(0)), plain(data(0)))
    engine.backward(model.layers[1](model.layers[0](data(0))).sum())  # it goes on
    engine.step()
    engine.destroy()


def test_a_frozen_unit_inside_vmap_works_where_no_gradient_passes_it() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"frozen": nn.Linear(8, 8).requires_grad_(False), "trained": nn.Linear(8, 8)})
    plain, _ = plain_of(model)
    engine = engine_of(model)
    for each in (model, plain):
        each["trained"](torch.func.vmap(each["frozen"])(data(0))).sum().backward()
    gradient = sluice.utils.safe_get_full_grad(model["trained"].weight)
    torch.testing.assert_close(gradient, plain["trained"].weight.grad)
    engine.destroy()


def test_forward_mode_differentiation_is_refused_with_gradients() -> None:
    model = mlp()
    plain, _ = plain_of(model)
    engine = engine_of(model)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(data(0), data(1))
        with pytest.raises(ValueError, match=r"dual_level.* inside torch\.no_grad\(\).* torch\.autograd\.functional\.jacobian"):
            engine(dual)
        with torch.no_grad():
            tangent, expected = (forward_ad.unpack_dual(each(dual)).tangent for each in (engine, plain))
        torch.testing.assert_close(tangent, expected)
        engine.backward(engine(data(2)).sum())
    engine.step()
    engine.destroy()


Start = Callable[[nn.Module], Any]
# Each has zero_grad() and step(), as an optimizer of PyTorch.
STARTS: dict[str, Start] = {"offload": lambda model: sluice.offload(model, config()), "engine": engine_of}


def gan(generator: nn.Module, critic: nn.Module, of_generator: Any, of_critic: Any) -> None:
    """A backward of the generator's leaves gradients in the critic."""
    for step in range(4):
        of_critic.zero_grad()
        (critic(data(step)).mean() - critic(generator(data(step + 9)).detach()).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        critic(generator(data(step + 9))).mean().backward()
        of_generator.step()


def late_zero(model: nn.Module, _: nn.Module, optimizer: Any, __: Any) -> None:
    """A batch is skipped, and gradients are dropped between forward and backward."""
    for step in range(4):
        loss = model(data(step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step != 1:
            optimizer.step()


def zero_after_step(model: nn.Module, _: nn.Module, optimizer: Any, __: Any) -> None:
    for step in range(4):
        model(data(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("loop", [gan, late_zero, zero_after_step])
@pytest.mark.parametrize("start", STARTS)
def test_zero_grad_drops_what_torch_drops(start: str, loop: Callable[..., None]) -> None:
    models = mlp(), mlp(1)
    plain = [plain_of(model) for model in models]
    engines = [STARTS[start](model) for model in models]
    loop(*models, *engines)
    loop(*(model for model, _ in plain), *(optimizer for _, optimizer in plain))
    for model, (twin, _) in zip(models, plain):
        assert_equal_weights(model, twin)


def test_zero_grad_after_each_micro_batch_keeps_the_step() -> None:
    model = mlp()
    plain, optimizer = plain_of(model)
    engine = engine_of(model, config(gradient_accumulation_steps=2))
    for number in range(4):
        engine.zero_grad()
        engine.backward(engine(data(number)).square().mean())
        engine.step()
        engine.optimizer.zero_grad()
        (plain(data(number)).square().mean() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert_equal_weights(model, plain)
    engine.destroy()


def test_zero_grad_before_step_drops_the_micro_batches_so_far() -> None:
    model = mlp()
    plain, optimizer = plain_of(model)
    engine = engine_of(model, config(gradient_accumulation_steps=2))
    for number in range(3):
        engine.backward(engine(data(number)).square().mean())
        if number == 1:  # counts for no step
            engine.optimizer.zero_grad()
        else:
            engine.step()
    assert engine.global_steps == 1
    (plain(data(2)).square().mean() / 2).backward()
    optimizer.step()
    assert_equal_weights(model, plain)
    engine.destroy()


@pytest.mark.parametrize("start", STARTS)
def test_a_graph_of_a_backward_is_refused(start: str) -> None:
    model = mlp()
    plain, optimizer = plain_of(model)
    engine = STARTS[start](model)
    x = data(0).requires_grad_()
    with pytest.raises(ValueError, match="create_graph=True"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    with pytest.raises(ValueError, match="create_graph=True"):
        torch.autograd.functional.hessian(lambda x: model(x).sum(), data(0))
    jacobians = [torch.autograd.functional.jacobian(lambda x, each=each: each(x).sum(0), data(0)) for each in (model, plain)]
    torch.testing.assert_close(*jacobians)
    for trained, steps in ((model, engine), (plain, optimizer)):
        trained(data(1)).square().mean().backward()
        steps.step()
    assert_equal_weights(model, plain)


@pytest.mark.parametrize("start", STARTS)
def test_a_layer_that_is_replaced_under_an_engine_is_named(start: str) -> None:
    model: Any = mlp()
    engine = STARTS[start](model)
    model[2] = nn.Linear(8, 4)
    model(data(0)).square().mean().backward()
    with pytest.raises(ValueError, match=r"parameter 2\.weight came into the model after the engine"):
        engine.step()
