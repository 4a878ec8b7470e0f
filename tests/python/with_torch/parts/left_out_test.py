"""An optimizer over a part of what requires a gradient trains that part, as in DeepSpeed; the rest is frozen, with a warning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import config, differences, engine_of, make, train, train_plain, without_optimizer
from torch import nn

import sluice


def chosen(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if not name.startswith("norm.")]


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)


@pytest.mark.parametrize("given", ["optimizer", "model_parameters"])
def test_a_part_is_trained_and_the_rest_keeps_its_values(given: str, caplog: pytest.LogCaptureFixture) -> None:
    plain, model = make(), make()
    expected = train_plain(plain, adamw(chosen(plain)), range(5))
    taken: dict[str, Any] = {"optimizer": adamw(chosen(model))} if given == "optimizer" else {"model_parameters": chosen(model)}
    engine = engine_of(model, without_optimizer() if given == "optimizer" else config(), **taken)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("2 parameters (128 elements) require a gradient and are in no group")
    assert line.endswith("norm.weight, norm.bias")
    assert differences(train(engine, range(5)), expected) < 2e-6
    weights = engine.module_state_dict()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    assert torch.equal(weights["norm.weight"], torch.ones(64))
    engine.destroy()


def test_a_loop_of_ones_own_trains_a_part_too(caplog: pytest.LogCaptureFixture) -> None:
    model = make(blocks=1)
    optimizer = sluice.offload(model, without_optimizer(), optimizer=adamw(chosen(model)))
    assert "are in no group of the optimizer" in caplog.text
    assert not model.norm.weight.requires_grad
    optimizer.close()


FAULTS: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "another model": (lambda model: [*chosen(model), *make(blocks=1).parameters()], "is not of the model"),
    "nothing of the model": (lambda _: [nn.Parameter(torch.ones(2), requires_grad=False)], "is in no group"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_an_error_nothing_is_frozen(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    groups, message = FAULTS[fault]
    model = make(blocks=1)
    with pytest.raises(ValueError, match=message):
        engine_of(model, without_optimizer(), optimizer=adamw(groups(model)))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert "frozen" not in caplog.text


def test_an_optimizer_of_everything_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    model = make(blocks=1)
    engine = engine_of(model, without_optimizer(), optimizer=adamw(model.parameters()))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    engine.destroy()
