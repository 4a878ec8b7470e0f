"""Parameters between passes: what would compute with them, or write to them, is an error that names them."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import batch, config, differences, engine_of, make, train, train_plain
from torch import nn

import sluice
from sluice import utils

Use = Callable[[nn.Module, nn.Parameter], Any]

USES: dict[str, Use] = {
    "an L2 penalty": lambda model, weight: sum(each.pow(2).sum() for each in model.parameters()),
    "a norm": lambda model, weight: torch.stack([each.norm() for each in model.parameters()]),
    "a clone": lambda model, weight: weight.clone(),
    "a clone of the data": lambda model, weight: weight.data.clone(),
    "numpy": lambda model, weight: weight.detach().cpu().numpy(),
    "an item": lambda model, weight: weight[0],
    "clamped": lambda model, weight: weight.data.clamp_(-0.01, 0.01),
    "a moving average": lambda model, weight: weight.data.mul_(0.9).add_(weight.data, alpha=0.1),
    "copied to": lambda model, weight: weight.data.copy_(torch.zeros(2, 2)),
    "initialized": lambda model, weight: nn.init.normal_(weight),
    "replaced": lambda model, weight: setattr(weight, "data", torch.zeros(2, 2)),
    "flattened": lambda model, weight: nn.utils.parameters_to_vector(model.parameters()),
    "a state that is like it": lambda model, weight: torch.zeros_like(weight),
    "foreach": lambda model, weight: torch._foreach_norm(list(model.parameters())),
    "a loss with a parameter": lambda model, weight: torch.ones(2) * weight.exp(),
    "a function": lambda model, weight: nn.functional.linear(torch.ones(2, 2), weight),
    "its memory": lambda model, weight: weight.data_ptr(),
    "the memory of the data": lambda model, weight: weight.detach().to(torch.bfloat16).data_ptr(),
    "the bytes": lambda model, weight: bytes(weight.untyped_storage()),
    "rows": lambda model, weight: len(weight),
    "dlpack": lambda model, weight: torch.from_dlpack(weight.detach()),
    "a tensor of it": lambda model, weight: weight.new_tensor(weight),
}


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_every_use_between_passes_is_an_error_that_names_the_parameter(stage: int) -> None:
    engine = engine_of(make(), config(zero_optimization={"stage": stage}))
    model = engine.module
    weight = model.embedding.weight
    train(engine, range(1))
    for what, use in USES.items():
        with pytest.raises(RuntimeError, match=r"of parameter [a-z.0-9]+: its values are not here.*GatheredParameters"):
            use(model, weight)
            pytest.fail(what)
        with torch.no_grad(), pytest.raises(RuntimeError, match="its values are not here"):
            use(model, weight)
            pytest.fail(what)


def test_what_a_parameter_is_can_be_asked_for() -> None:
    engine = engine_of(make())
    weight = engine.module.embedding.weight
    assert isinstance(weight, nn.Parameter) and isinstance(weight, torch.Tensor)
    assert weight.shape == (0,) and weight.numel() == 0 and weight.dim() == 1 and weight.is_leaf
    assert weight.dtype == torch.float32 and weight.device == engine.device and weight.is_floating_point()
    assert weight.requires_grad and weight.grad is None and hash(weight) == id(weight)
    assert any(weight is each for each in engine.module.parameters()) and {weight: 1}[weight] == 1
    assert weight.data.shape == weight.detach().shape == weight.cpu().shape == (0,)
    assert "embedding.weight" in repr(weight) and "embedding.weight" in f"{weight}"
    engine.module.to(engine.device)


def test_clipping_by_value_is_an_error_whose_way_out_clips() -> None:
    value = 1e-3
    plain, model = make(), make()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.01)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(plain.parameters(), value))
    engine = engine_of(model)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-value, value))
    assert differences(train(engine, range(3)), train_plain(plain, optimizer, range(3))) < 1e-6
    for given in (model.parameters(), model.embedding.weight):
        with pytest.raises(RuntimeError, match=r"clip_grad_value_ of parameter [a-z.]+: .* parameter.register_hook\("):
            nn.utils.clip_grad_value_(given, value)
    assert nn.utils.clip_grad_norm_(model.parameters(), 1.0) == 0


@pytest.mark.parametrize("change", [nn.Module.half, nn.Module.double, lambda module: module.to("meta")])
def test_the_next_forward_of_a_module_that_was_converted_names_the_cause(change: Callable[[nn.Module], object]) -> None:
    engine = engine_of(make())
    change(engine.module)
    with pytest.raises((ValueError, RuntimeError), match=r"parameter .*: after initialize\(\) .* moved or converted"):
        engine(batch(0)[0])


@pytest.mark.parametrize("kind", ["parameters", "data", "bf16"])
def test_a_file_of_empty_tensors_is_never_written(kind: str, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model = engine_of(make()).module
    of_kind: dict[str, Callable[[nn.Parameter], torch.Tensor]] = {
        "parameters": lambda parameter: parameter,
        "data": lambda parameter: parameter.data.cpu().contiguous(),
        "bf16": lambda parameter: parameter.detach().to(torch.bfloat16),
    }
    with pytest.raises(RuntimeError, match="of parameter position: its values are not here.*state_dict"):
        safetensors.save_file({name: of_kind[kind](value) for name, value in model.named_parameters()}, tmp_path / "file")
    assert not (tmp_path / "file").exists()
    safetensors.save_model(model, tmp_path / "file")
    assert safetensors.load_file(tmp_path / "file")["position"].shape == model.position.ds_shape


def test_tensors_of_a_parameters_kind_are_made_from_it() -> None:
    weight = engine_of(make(), config(bf16={"enabled": True})).module.embedding.weight
    for source in (weight, weight.data):
        made = [
            *(source.new_zeros(2, 3), source.new_ones(2, 3), source.new_empty(2, 3), source.new_full((2, 3), 1.0)),
            *(source.new_tensor([[1.0]]), source.new(2, 3).zero_()),
            *(torch.ones(2, 3).type_as(source), torch.ones(2, 3).to(source), torch.ones(2, 3, dtype=torch.bfloat16).to(source)),
        ]
        assert all(type(each) is torch.Tensor and each.dtype == torch.bfloat16 and each.numel() > 0 for each in made)
        assert torch.result_type(source, 1.0) == torch.bfloat16
    weight.grad = torch.zeros(0, dtype=torch.bfloat16)
    del weight.grad
    assert weight.grad is None and "data_ptr" in dir(weight)
    with pytest.raises(RuntimeError, match=r"zeros_like of parameter embedding.weight: .*torch.zeros\(parameter.ds_shape, "):
        torch.zeros_like(weight)
    with pytest.raises(RuntimeError, match="norm of parameter embedding.weight"):
        weight.type_as(torch.ones(2)).norm()


class Language(nn.Module):
    """Makes its states as PyTorch's example of a language model does."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.lstm, self.decoder = nn.Embedding(100, 32), nn.LSTM(32, 32, 2), nn.Linear(32, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        weight = next(self.parameters())
        states = weight.new_zeros(2, ids.shape[1], 32), weight.new_zeros(2, ids.shape[1], 32)
        found: torch.Tensor = self.decoder(self.lstm(self.encoder(ids), states)[0])
        return found


def test_states_of_an_lstm_are_made_in_the_forward() -> None:
    engine = engine_of(make(Language))
    assert all(map(math.isfinite, train(engine, range(1))))
    engine.module.to(engine.device)
    # On a GPU, an LSTM that moves asks whether its weights are over the same memory.
    asks = types.FunctionType((lambda weight: weight.data_ptr()).__code__, {"__name__": "torch.nn.modules.rnn"})
    assert asks(engine.module.lstm.weight_ih_l0) == 0


def test_values_are_there_where_they_are_given() -> None:
    engine = engine_of(make())
    weight = engine.module.embedding.weight
    seen: list[type] = []
    engine.module.embedding.register_forward_pre_hook(lambda module, inputs: seen.append(type(weight)))
    train(engine, range(1))
    with sluice.zero.GatheredParameters([weight]):
        seen.append(type(weight))
        assert weight.norm() > 0
    assert seen == [nn.Parameter, nn.Parameter] and type(weight) is not nn.Parameter
    with pytest.raises(RuntimeError, match="norm of parameter embedding.weight"):
        weight.norm()


class KeyEncoder(nn.Module):
    """Sets the weight of another unit in its forward, as MoCo does."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.key.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.key.weight.data = 0.9 * self.key.weight.data + 0.1 * self.query.weight.data
        return (self.query(x) * self.key(x)).sum()


def test_a_write_to_another_unit_in_a_forward_is_an_error() -> None:
    engine = engine_of(make(KeyEncoder))
    with pytest.raises(ValueError, match=r"parameter key.weight of unit key was given other values through .data in a forward"):
        engine(torch.ones(2, 4))
    assert all(parameter.numel() == 0 for parameter in engine.module.parameters())


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_copies_of_a_parameter_are_refused(copied: Callable[[Any], Any]) -> None:
    engine = engine_of(make())
    with pytest.raises(TypeError, match="module_state_dict.. has copies of its values"):
        copied({name: parameter.cpu() for name, parameter in engine.module.named_parameters()})


def test_a_failed_forward_leaves_no_parameter_unguarded() -> None:
    engine = engine_of(make())
    with pytest.raises(Exception):
        engine(torch.tensor([[10_000]]))
    train(engine, range(1))
    for name, parameter in engine.module.named_parameters():
        with pytest.raises(RuntimeError, match=f"norm of parameter {name}:"):
            parameter.norm()


def test_parameters_of_an_engine_that_is_gone_can_have_values_again(tmp_path: Path) -> None:
    model = make()
    values = copy.deepcopy(model.state_dict())
    engine = engine_of(model, config("nvme", tmp_path))
    engine.destroy()
    del engine
    gc.collect()
    with pytest.raises(RuntimeError, match="no values any more, since its engine was destroyed"):
        model.embedding.weight.norm()
    for name, parameter in model.named_parameters():
        parameter.data = values[name].clone()
        assert type(parameter) is nn.Parameter
    again = engine_of(model)
    assert all(map(math.isfinite, train(again, range(1))))


def test_an_engine_that_cannot_be_made_leaves_ordinary_parameters() -> None:
    model = make()
    with pytest.raises(Exception, match="lr_scheduler|scheduler"):
        engine_of(model, lr_scheduler="none that is known")
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert model.embedding.weight.norm() > 0


class Scaled(nn.Parameter):
    """A class of its own, as libraries have."""


def test_parameters_of_a_class_of_their_own_have_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].weight = Scaled(model[0].weight.detach())
    engine = engine_of(model, config("cpu"))
    assert "parameters of a class of their own, 0.weight (Scaled), are empty while their unit does not compute" in caplog.text
    engine.destroy()


def test_a_hook_of_a_backward_is_not_between_passes() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    engine = engine_of(model, config("cpu"))
    model[1].register_full_backward_hook(lambda module, inputs, outputs: model[0].weight.norm() and None)
    with pytest.raises(RuntimeError, match="its values are not here while its unit does not compute"):
        engine.backward(engine(torch.ones(2, 4)).square().mean())
    engine.destroy()


class Adjoint(nn.Module):
    """A block whose autograd function computes gradients of its parameters itself, as solvers of ODEs do."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inner: nn.Module, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
            ctx.inner, ctx.parameters = inner, parameters
            ctx.save_for_backward(x)
            with torch.no_grad():
                return inner(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                return None, *torch.autograd.grad(ctx.inner(x), (x, *ctx.parameters), gradient)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = x + Adjoint.Function.apply(self.inner, x, *self.inner.parameters())
        return made


def test_a_function_that_calls_grad_needs_its_module_as_a_unit() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Adjoint())
    plain = copy.deepcopy(model)
    x = torch.ones(2, 4)
    sgd = config("cpu", optimizer={"type": "SGD", "params": {"lr": 1.0}}, gradient_clipping=0.0)
    engine = engine_of(model, sgd, units=["Linear"])
    with pytest.raises(RuntimeError, match="torch.autograd.grad, as that of an adjoint ODE, needs the module whose forward"):
        engine.backward(engine(x).square().mean())
    engine.destroy()
    engine = engine_of(model, sgd, units=["Adjoint"])
    engine.backward(engine(x).square().mean())
    engine.step()
    plain(x).square().mean().backward()
    torch.optim.SGD(plain.parameters(), 1.0).step()
    torch.testing.assert_close(engine.module_state_dict(), dict(plain.state_dict()))
    engine.destroy()


class Reversible(nn.Module):
    """A block whose autograd function computes it again in backward, by its inner module alone."""

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, block: Reversible) -> torch.Tensor:
            ctx.block = block
            ctx.save_for_backward(x)
            return block(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                ctx.block.inner(x).backward(gradient)
            assert x.grad is not None
            return x.grad, None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class OfReversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList([Reversible(), Reversible()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = Reversible.Again.apply(x, block)
        return x.square().mean()


def test_a_backward_that_calls_inner_modules_is_an_error_that_says_how_it_works() -> None:
    engine = engine_of(OfReversible(), config("cpu"))
    loss = engine(torch.ones(2, 4))
    with pytest.raises(RuntimeError, match=r"needs these modules as units: initialize\(\.\.\., units=\[\.\.\.\]\)"):
        engine.backward(loss)
    engine.destroy()
    plain, model = make(OfReversible), make(OfReversible)
    plain(torch.ones(2, 4)).backward()
    engine = engine_of(model, config("cpu"), units=["Linear"])
    engine.backward(engine(torch.ones(2, 4)))
    for name, parameter in plain.named_parameters():
        assert torch.equal(utils.safe_get_full_grad(model.get_parameter(name)), parameter.grad), name  # type: ignore[arg-type]
    engine.destroy()
