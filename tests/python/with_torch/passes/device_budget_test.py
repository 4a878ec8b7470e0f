"""Memory of the CPU's device tier, where "device_bytes" limits it: what takes it, and what does not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn

import sluice
from sluice.checkpoint.utils import clone_tensors_for_torch_save
from sluice.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

WIDTH = 256  # a layer has 257 KiB of weights in fp32
MIB = 1 << 20


class Deep(nn.Sequential):
    """Of 4 MiB of weights, and a buffer of 4 MiB."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(*(nn.Linear(WIDTH, WIDTH) for _ in range(16)))
        self.register_buffer("table", torch.zeros(MIB))


def deep_engine(device_bytes: str, stage: int = 3) -> sluice.SluiceEngine:
    zero: dict[str, Any] = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    if stage == 3:
        zero["offload_param"] = {"device": "cpu"}
    return engine_of(Deep(), config("device", zero_optimization=zero, sluice={"device": "host", "device_bytes": device_bytes}))


def train(engine: sluice.SluiceEngine, steps: int = 3) -> list[float]:
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        loss = engine(torch.randn(2, WIDTH)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("modifier", [None, 0])
def test_copies_to_change_take_nothing_of_the_budget(modifier: int | None) -> None:
    engine = deep_engine("7MiB")
    with sluice.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=modifier):
        if modifier is not None:
            engine.module[0].weight.data.fill_(1)
    engine.destroy()
    assert bool(engine.module[0].weight.eq(1).all()) == (modifier == 0)


def check_unlimited() -> None:
    assert torch.ones(4 * MIB).sum() == 4 * MIB


def test_a_model_that_is_larger_has_its_values_again_at_the_end() -> None:
    engine = deep_engine("3MiB")
    train(engine)
    masters = {name: sluice.utils.safe_get_full_fp32_param(value) for name, value in engine.module.named_parameters()}
    engine.destroy()
    assert all(torch.equal(value, masters[name]) for name, value in engine.module.named_parameters())
    check_unlimited()


def test_an_engine_ends_where_its_script_has_taken_all_memory() -> None:
    engine = deep_engine("3MiB")
    kept = []
    with pytest.raises(RuntimeError, match="device_bytes"):
        while True:
            kept.append(torch.zeros(1 << 10))
    engine.destroy()
    assert all(value.numel() > 0 for value in engine.module.parameters())
    check_unlimited()


def test_an_engine_without_memory_for_the_values_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = deep_engine("3MiB")

    def fail(name: str) -> torch.Tensor:
        raise MemoryError("no memory for " + name)

    monkeypatch.setattr(engine.loop, "master", fail)
    engine.destroy()
    assert "the model stays empty: its values cannot be read (no memory for 0.weight)" in caplog.text
    assert all(value.numel() == 0 for value in engine.module.parameters())
    check_unlimited()


def gathered(engine: sluice.SluiceEngine) -> list[torch.Tensor]:
    values = []
    for parameter in engine.module.parameters():
        with sluice.zero.GatheredParameters(parameter):
            values.append(parameter.data)
    return values


def of_each(read: Callable[[Any], Any]) -> Callable[[sluice.SluiceEngine], list[Any]]:
    return lambda engine: [read(parameter) for parameter in engine.module.parameters()]


@pytest.mark.parametrize(
    "copies",
    [
        lambda engine: engine.module_state_dict(),
        lambda engine: engine.module.state_dict(),
        lambda engine: clone_tensors_for_torch_save(engine.module_state_dict()),
        gathered,
        of_each(sluice.utils.safe_get_full_fp32_param),
        of_each(lambda parameter: sluice.utils.safe_get_full_optimizer_state(parameter, "exp_avg")),
        of_each(sluice.utils.safe_get_local_fp32_param),
        of_each(sluice.utils.safe_get_full_grad),
    ],
    ids=["module_state_dict", "state_dict", "clones", "gathered", "masters", "moments", "shards", "gradients"],
)
def test_copies_take_none_of_it(copies: Callable[[sluice.SluiceEngine], Any]) -> None:
    engine = deep_engine("3MiB")
    train(engine)
    engine.backward(engine(torch.ones(2, WIDTH)).mean())
    assert copies(engine) is not None
    engine.step()
    engine.destroy()


def test_files_need_none_of_it(tmp_path: Path) -> None:
    engine = deep_engine("3MiB")
    losses = train(engine)
    engine.save_16bit_model(str(tmp_path))
    engine.save_checkpoint(str(tmp_path))
    weights = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert sum(value.nbytes for value in weights.values()) > 8 * MIB
    later = train(engine)
    for keys in ({}, {"load_optimizer_states": False}):
        engine.load_checkpoint(str(tmp_path), **keys)
        assert train(engine) == later or keys
    assert later[0] < losses[0]
    engine.destroy()


# A larger budget has weights at home, and room for autograd as well.
@pytest.mark.parametrize("device_bytes", ["2304KiB", "3MiB", "3584KiB", "4MiB", "5MiB", "6MiB", "8MiB"])
def test_weights_at_home_leave_room_for_activations(device_bytes: str) -> None:
    engine = deep_engine(device_bytes, stage=2)
    assert all(loss > 0 for loss in train(engine))
    engine.destroy()


def test_an_error_says_how_much_of_it_the_plan_takes() -> None:
    for device_bytes, advice in (("3MiB", "a larger one leaves more"), ("8MiB", "a smaller micro-batch needs less")):
        engine = deep_engine(device_bytes)
        size = device_bytes.replace("MiB", ".00 MiB")
        with pytest.raises(RuntimeError, match=rf'device_bytes"}} is its budget, {size}, of which the plan takes up to .* MiB; {advice}\)'):
            torch.zeros(4 * MIB)
        engine.destroy()
