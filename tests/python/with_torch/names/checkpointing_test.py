"""sluice.checkpointing: activations that are computed again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_models import Tied, assert_follows
from torch import nn

from sluice import checkpointing


class Counted(nn.Module):
    """Counts its forwards, and draws random numbers in them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor, factor: torch.Tensor | float = 1.0, bias: torch.Tensor | None = None) -> torch.Tensor:
        self.calls += 1
        y = nn.functional.dropout(torch.tanh(self.linear(x)), 0.5) * factor
        return y if bias is None else y + bias


def course(call: Callable[..., Any]) -> tuple[list[torch.Tensor], int]:
    """Output and gradients of weights and inputs, and how often the forward ran."""
    torch.manual_seed(3)
    module = Counted()
    x, factor, bias = (torch.randn(4, 8, requires_grad=True) for _ in range(3))
    out = call(module, x, factor, bias=bias)
    out.square().sum().backward()
    return [out.detach(), *(value.grad for value in (module.linear.weight, module.linear.bias, x, factor, bias))], module.calls


def test_a_checkpointed_function_gives_the_gradients_of_the_plain_one() -> None:
    expected, calls = course(lambda module, x, factor, bias: module(x, factor, bias))
    assert calls == 1
    for call in (
        lambda module, x, factor, bias: checkpointing.checkpoint(module, x, factor, bias),
        lambda module, x, factor, bias: checkpointing.checkpoint(module, x, factor, bias=bias),
        lambda module, x, factor, bias: checkpointing.non_reentrant_checkpoint(module, x, factor, bias),
    ):
        found, calls = course(call)
        assert calls == 2  # again in backward, with the random numbers of forward
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_arguments_named_as_those_of_pytorch_are_the_functions() -> None:
    def function(x: torch.Tensor, use_reentrant: float, determinism_check: float) -> torch.Tensor:
        return x * use_reentrant + determinism_check

    x = torch.ones(2, requires_grad=True)
    out = checkpointing.checkpoint(function, x, use_reentrant=3.0, determinism_check=4.0)
    assert out.tolist() == [7, 7]
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_without_gradients_nothing_is_computed_again() -> None:
    module = Counted()
    with torch.no_grad():
        out = checkpointing.checkpoint(module, torch.randn(4, 8))
    checkpointing.reset()  # scripts call it in evaluation
    assert (module.calls, out.requires_grad) == (1, False)
    out = checkpointing.checkpoint(module, torch.randn(4, 8))
    checkpointing.reset()  # the graph is whole afterwards
    out.sum().backward()
    assert module.calls == 3


class WithKeywords(Tied):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = checkpointing.checkpoint(block, x=x)
        return self.head(self.norm(x))


class NonReentrant(Tied):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = checkpointing.non_reentrant_checkpoint(block, x)
        return self.head(self.norm(x))


@pytest.mark.parametrize("model", [WithKeywords, NonReentrant])
def test_engines_train_checkpointed_blocks(model: type[nn.Module]) -> None:
    assert_follows(model)


CONFIGURED = """
from sluice import checkpointing
seen = [checkpointing.is_configured()]
try:
    checkpointing.configure(None, profile=True)
except ValueError as error:
    seen += [str(error).split(":")[0], checkpointing.is_configured()]
checkpointing.configure(None, deepspeed_config={}, num_checkpoints=2, checkpoint_in_cpu=True, synchronize=True)
checkpointing.reset()
print(*seen, checkpointing.is_configured())
"""


def test_a_process_knows_whether_it_is_configured() -> None:
    result = subprocess.run([sys.executable, "-c", CONFIGURED], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "False profile False True\n", result.stderr


@pytest.mark.parametrize("name", ["partition_activations", "contiguous_checkpointing"])
def test_what_changes_nothing_is_a_line_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    arguments: dict[str, Any] = {name: True}
    with caplog.at_level("INFO", logger="sluice"):
        checkpointing.configure(None, **arguments)
    assert f"{name} changes nothing" in caplog.text


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="profile"):
        checkpointing.configure(None, profile=True)
    with pytest.raises(ValueError, match="mpu_"):
        checkpointing.configure(object())
