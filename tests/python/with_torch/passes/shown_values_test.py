"""What works, and what does not, while GatheredParameters shows values."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MEMORY_OF_ITS_OWN, batch, config, data, engine_of, loss_of, make, mlp, train
from torch import nn

import sluice
from sluice.utils import (
    safe_get_full_fp32_param,
    safe_get_full_grad,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_grad,
)

READS = (safe_get_full_fp32_param, safe_get_full_grad, lambda weight: safe_get_full_optimizer_state(weight, "exp_avg"))
DEVICES = pytest.mark.parametrize("device", [{"device": "host"}, MEMORY_OF_ITS_OWN], ids=["host", "own memory"])


def backward(engine: sluice.SluiceEngine, number: int) -> None:
    ids, targets = batch(number)
    engine.backward(loss_of(engine(ids), targets))


def course(keys: dict[str, Any], modifier: int | None, reads: bool) -> tuple[list[torch.Tensor], list[float]]:
    """What is read on the way, inside the context or before it, and the losses."""
    model = make(blocks=1)
    engine, weight = engine_of(model, keys), model.blocks[0].up.weight
    losses = train(engine, range(2))
    backward(engine, 300)
    outside = [] if reads else [read(weight) for read in READS]
    with sluice.zero.GatheredParameters(weight, modifier_rank=modifier):
        inside = [read(weight) for read in READS] if reads else []
        if modifier is not None:
            weight.data[0] += 1
        inside += [weight.clone()]
    engine.step()
    losses += train(engine, range(2, 4))
    engine.destroy()
    return outside + inside, losses


@pytest.mark.parametrize("tier", ["cpu", "nvme"])
@pytest.mark.parametrize("modifier", [None, 0])
@DEVICES
def test_masters_states_and_gradients_are_read(tier: str, modifier: int | None, device: dict[str, Any], tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    seen, losses = course(config(tier, folders[0], sluice=device), modifier, reads=True)
    before, plain = course(config(tier, folders[1], sluice=device), modifier, reads=False)
    assert all(map(torch.equal, seen, before))
    assert losses == plain


@pytest.mark.parametrize("tier", ["cpu", "device"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@DEVICES
def test_masters_that_are_read_or_saved_beside_a_change_are_those_of_before(
    tier: str, precision: str, device: dict[str, Any], tmp_path: Path
) -> None:
    engine = engine_of(mlp(), config(tier, sluice=device, **{precision: {"enabled": True}}))
    inputs, weight = data().to(engine.module[0].weight.dtype), engine.module[0].weight
    engine.backward(engine(inputs).float().sum())
    engine.step()
    before = safe_get_full_fp32_param(weight)
    with sluice.zero.GatheredParameters(weight, modifier_rank=0):
        weight.data.fill_(0.5)
        outputs = engine(inputs)
        assert torch.equal(safe_get_full_fp32_param(weight), before)
        engine.save_checkpoint(str(tmp_path))
        assert weight.eq(0.5).all()
    assert safe_get_full_fp32_param(weight).eq(0.5).all()
    assert torch.equal(engine(inputs), outputs)
    engine.load_checkpoint(str(tmp_path))
    assert torch.equal(safe_get_full_fp32_param(weight), before)
    engine.destroy()


@pytest.mark.parametrize("modifier", [None, 0])
@pytest.mark.parametrize("kind", ["state_dict", "module_state_dict", "save_16bit_model"])
@DEVICES
def test_a_state_dict_has_the_parameters_that_are_not_shown(kind: str, modifier: int | None, device: dict[str, Any], tmp_path: Path) -> None:
    model = mlp()
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_of(model, config(sluice=device))
    with sluice.zero.GatheredParameters(model[0].weight, modifier_rank=modifier):
        if kind == "save_16bit_model":
            engine.save_16bit_model(str(tmp_path))
            values = torch.load(tmp_path / "pytorch_model.bin")
        else:
            values = getattr(model if kind == "state_dict" else engine, kind)()
        assert model[0].weight.numel() == 64 and model[2].weight.numel() == 0
    assert values.keys() == expected.keys() and all(torch.equal(value, expected[name]) for name, value in values.items())
    engine.destroy()


def test_a_context_that_ends_without_memory_for_a_kept_tensor_is_left() -> None:
    torch.manual_seed(0)
    rows = 17 << 10  # 68 MiB: more than the address space that a heap of malloc has set aside
    model = nn.Sequential(nn.Linear(1024, rows, bias=False))
    engine = engine_of(model, config(optimizer={"type": "SGD", "params": {"lr": 1e-3}}))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        with pytest.raises((MemoryError, RuntimeError), match="allocate memory|requested on tier host"), sluice.zero.GatheredParameters(model[0].weight):
            kept = model[0].weight.data
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), limits[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert kept.shape == (rows, 1024)
    with pytest.raises(RuntimeError, match="between passes"):
        model[0].weight.sum()
    engine.backward(engine(torch.ones(2, 1024)).square().mean())
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


@pytest.mark.parametrize("set_value", [safe_set_full_fp32_param, safe_set_full_grad])
def test_masters_and_gradients_are_set_before_or_after(set_value: Any) -> None:
    model = mlp()
    engine = engine_of(model)
    engine.backward(engine(data()).sum())
    zeros = torch.zeros(4, 8)
    before = safe_get_full_fp32_param(model[2].weight), safe_get_full_grad(model[2].weight)
    with sluice.zero.GatheredParameters(model[2].weight):
        with pytest.raises(ValueError, match=r"parameter 2\.weight is set while a script sees gathered values.*before or after"):
            set_value(model[2].weight, zeros)
    after = safe_get_full_fp32_param(model[2].weight), safe_get_full_grad(model[2].weight)
    assert all(map(torch.equal, before, after))  # type: ignore[arg-type]
    set_value(model[2].weight, zeros)


@DEVICES
def test_dropped_gradients_leave_the_values(device: dict[str, Any]) -> None:
    model = mlp()
    engine = engine_of(model, config("cpu", sluice=device))
    engine.backward(engine(data()).sum())
    weight = model[0].weight
    with sluice.zero.GatheredParameters(weight, modifier_rank=0):
        weight.data.fill_(0.5)
        engine.zero_grad()
        assert weight.eq(0.5).all()
        with sluice.zero.GatheredParameters(weight):
            assert weight.eq(0.5).all()
        assert weight.eq(0.5).all()
    assert safe_get_full_fp32_param(weight).eq(0.5).all()
    with pytest.raises(RuntimeError, match="between passes"):
        weight.sum()
    assert safe_get_full_grad(weight) is None
    engine.backward(engine(data()).sum())
    engine.step()
    assert engine.global_steps == 1


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
        if fails:
            raise KeyError("a mistake of the script")
        return self.layer(x)


def test_an_error_of_a_forward_comes_through_the_context() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Fails())
    engine = engine_of(model)
    with pytest.raises(KeyError, match="a mistake of the script"), sluice.zero.GatheredParameters(model[0].weight):
        model[1](engine.module[0](data()), fails=True)
    engine.backward(engine(data()).sum())
    engine.step()
    assert engine.global_steps == 1


def test_an_error_of_a_backward_comes_through_the_context() -> None:
    model = mlp()
    engine = engine_of(model)
    weight = model[0].weight
    with pytest.raises(ZeroDivisionError), sluice.zero.GatheredParameters(weight):
        before = weight.clone()
        output = engine(data())
        output.register_hook(lambda _: 1 / 0)
        try:
            engine.backward(output.sum())
        finally:
            assert torch.equal(weight, before)
    engine.backward(engine(data()).sum())
    engine.step()
    assert engine.global_steps == 1


@pytest.mark.parametrize("only_weights", [False, True])
def test_a_checkpoint_is_loaded_before_or_after(only_weights: bool, tmp_path: Path) -> None:
    model = mlp()
    engine = engine_of(model)
    engine.save_checkpoint(str(tmp_path))
    engine.backward(engine(data()).sum())
    engine.step()
    before = safe_get_full_fp32_param(model[0].weight)
    with sluice.zero.GatheredParameters(model[0].weight, modifier_rank=0):
        with pytest.raises(ValueError, match=r"inside GatheredParameters, which shows 0\.weight: leave its context first"):
            engine.load_checkpoint(str(tmp_path), load_module_only=only_weights)
    assert torch.equal(safe_get_full_fp32_param(model[0].weight), before)
    engine.load_checkpoint(str(tmp_path), load_module_only=only_weights)
    assert not torch.equal(safe_get_full_fp32_param(model[0].weight), before)


def test_a_step_ends_before_or_after() -> None:
    model = mlp()
    engine = engine_of(model)
    engine.backward(engine(data()).sum())
    with sluice.zero.GatheredParameters(model[0].weight), pytest.raises(ValueError, match="a step ends inside GatheredParameters"):
        engine.step()
    engine.step()
    assert engine.global_steps == 1
