"""States that do not fit their parameters: a host optimizer refuses them before it writes to any memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sluice.ops.adagrad import DeepSpeedCPUAdagrad
from sluice.ops.adam import DeepSpeedCPUAdam
from sluice.ops.lion import DeepSpeedCPULion
from sluice.ops.sgd import CPUSGD

MAKES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda params: DeepSpeedCPUAdam(params, lr=0.01),
    "adagrad": lambda params: DeepSpeedCPUAdagrad(params),
    "lion": lambda params: DeepSpeedCPULion(params),
    "momentum": lambda params: CPUSGD(params, momentum=0.9),
}


def a_parameter(*shape: int) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape))
    parameter.grad = torch.full(shape, 0.5)
    return parameter


def stepped(*shape: int) -> tuple[torch.nn.Parameter, DeepSpeedCPUAdam]:
    parameter = a_parameter(*shape)
    optimizer = DeepSpeedCPUAdam([parameter], lr=0.01)
    optimizer.step()
    return parameter, optimizer


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("shape", [(1200,), (800,), (10, 100)], ids=str)
def test_a_loaded_state_of_another_shape_is_refused(name: str, shape: tuple[int, ...]) -> None:
    small = MAKES[name]([a_parameter(1000)])
    small.step()
    other = a_parameter(*shape)
    optimizer = MAKES[name]([{"params": [a_parameter(1)], "lr": 0.1}, {"params": [a_parameter(2), other]}])
    saved = optimizer.state_dict()
    saved["state"] = {2: small.state_dict()["state"][0]}
    optimizer.load_state_dict(saved)
    before = other.detach().clone()
    with pytest.raises(ValueError, match=r"the state '\w+' of parameter 1 of group 1 has shape \[1000\], the parameter has \["):
        optimizer.step()
    assert torch.equal(other, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.double(), "is torch.float64; DeepSpeedCPUAdam takes fp32 and bf16"),
        (lambda state: state.half(), "is torch.float16; DeepSpeedCPUAdam takes fp32 and bf16"),
        (lambda state: state.bfloat16(), "is torch.bfloat16, and 'exp_avg' is torch.float32: both have one type"),
        (lambda state: state.to("meta"), "is on meta with layout torch.strided; DeepSpeedCPUAdam takes dense ones on the CPU"),
        (lambda state: state.to_sparse(), "is on cpu with layout torch.sparse_coo"),
        (lambda state: 0.5, "is a float and no tensor"),
    ],
)
def test_a_state_of_another_kind_is_refused(change: Callable[[torch.Tensor], Any], message: str) -> None:
    parameter, optimizer = stepped(4, 4)
    state = optimizer.state[parameter]
    state["exp_avg_sq"] = change(state["exp_avg_sq"])
    before = parameter.detach().clone()
    with pytest.raises(ValueError, match=f"the state 'exp_avg_sq' of parameter 0 of group 0 {message}.*or clear them to begin anew"):
        optimizer.step()
    assert torch.equal(parameter, before)
    state.clear()
    optimizer.step()
    assert state["step"] == 1


def test_a_state_that_is_not_contiguous_is_stepped_by_its_values() -> None:
    random = torch.Generator().manual_seed(1)
    (mine, optimizer), (theirs, reference) = stepped(4, 4), stepped(4, 4)
    for step in range(3):
        for name in ("exp_avg", "exp_avg_sq"):
            optimizer.state[mine][name] = optimizer.state[mine][name].t().contiguous().t()
            assert not optimizer.state[mine][name].is_contiguous()
        mine.grad = torch.randn(4, 4, generator=random)
        theirs.grad = mine.grad.clone()
        optimizer.step()
        reference.step()
    assert torch.equal(mine, theirs)
    assert torch.equal(optimizer.state[mine]["exp_avg"], reference.state[theirs]["exp_avg"])


def test_hooks_of_a_load_have_their_way() -> None:
    _, optimizer = stepped(4)
    saved = optimizer.state_dict()

    def loaded(before: Any = None, after: Any = None) -> Any:
        parameter = a_parameter(4).bfloat16().detach()
        other = DeepSpeedCPUAdam([parameter])
        if before is not None:
            other.register_load_state_dict_pre_hook(before)
        if after is not None:
            other.register_load_state_dict_post_hook(after)
        other.load_state_dict(saved)
        return other.state[parameter]["exp_avg"]

    def halve(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "state": {key: {**each, "exp_avg": each["exp_avg"] / 2} for key, each in state["state"].items()}}

    moment = saved["state"][0]["exp_avg"]
    assert torch.equal(loaded(), moment)
    assert loaded().dtype == torch.float32
    assert torch.equal(loaded(before=halve), moment / 2)
    assert not loaded(after=lambda other: [each["exp_avg"].zero_() for each in other.state.values()] and None).any()
    assert torch.equal(saved["state"][0]["exp_avg"], moment)


@pytest.mark.parametrize("name", MAKES)
def test_a_backward_through_the_values_before_a_step_is_an_error(name: str) -> None:
    parameter, other = a_parameter(4), a_parameter(4)
    optimizer = MAKES[name]([parameter])
    result = (parameter * other).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_a_gradient_from_before_another_data_is_refused() -> None:
    parameter, optimizer = stepped(4)
    parameter.data = torch.ones(4000)
    with pytest.raises(ValueError, match=r"the gradient of parameter 0 of group 0 has shape \[4\] on cpu, the parameter \[4000\]"):
        optimizer.step()


@pytest.mark.parametrize("error", ["gradient", "constant"])
def test_an_error_of_a_later_group_leaves_the_earlier_ones(error: str) -> None:
    first, second = a_parameter(4), a_parameter(4, 4)
    optimizer = DeepSpeedCPUAdam([{"params": [first]}, {"params": [second]}], lr=1.0)
    if error == "gradient":
        second.grad = torch.ones(4, 8)[:, ::2]
    else:
        optimizer.param_groups[1]["lr"] = -1.0
    before = first.detach().clone()
    with pytest.raises(ValueError, match=r"parameter 0 of group 1 is not contiguous|learning_rate is -1"):
        optimizer.step()
    assert torch.equal(first, before)
    assert optimizer.state[first].get("step", 0) == 0
    second.grad = torch.ones(4, 4)
    optimizer.param_groups[1]["lr"] = 1.0
    optimizer.step()
    assert [optimizer.state[one]["step"] for one in (first, second)] == [1, 1]


def negative_one() -> torch.Tensor:
    """A value that PyTorch negates when it reads it: its memory has 1."""
    value = torch.tensor([1j]).conj().imag
    assert value.is_neg()
    assert value.is_contiguous()
    return value


def test_values_whose_sign_waits_are_read_with_it() -> None:
    made = []
    for gradient, moment in ((negative_one(), negative_one()), (torch.tensor([-1.0]), torch.tensor([-1.0]))):
        parameter = torch.nn.Parameter(torch.ones(1))
        optimizer = CPUSGD([parameter], lr=0.1, momentum=0.9)
        parameter.grad = torch.ones(1)
        optimizer.step()
        optimizer.state[parameter]["momentum_buffer"] = moment
        parameter.grad = gradient
        optimizer.step()
        made.append((parameter.item(), optimizer.state[parameter]["momentum_buffer"].item()))
    assert made[0] == made[1]
    parameter = torch.nn.Parameter(negative_one())
    parameter.grad = torch.ones(1)
    optimizer = CPUSGD([parameter], lr=0.1)
    with pytest.raises(ValueError, match="parameter 0 of group 0 is a view of a conjugate.*resolve_neg"):
        optimizer.step()
    assert parameter.item() == -1
    parameter.data = parameter.data.resolve_neg()
    optimizer.step()
    assert parameter.item() == pytest.approx(-1.1)


@pytest.mark.parametrize("dampening", [0.0, 0.25])
def test_momentum_that_is_set_later_begins_as_pytorchs(dampening: float) -> None:
    random = torch.Generator().manual_seed(1)
    mine, theirs = a_parameter(4), a_parameter(4)
    optimizers = CPUSGD([mine], lr=0.1, dampening=dampening), torch.optim.SGD([theirs], lr=0.1, dampening=dampening)
    for step in range(5):
        mine.grad = torch.randn(4, generator=random)
        theirs.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.param_groups[0]["momentum"] = 0.9 if step >= 2 else 0.0
            optimizer.step()
        torch.testing.assert_close(mine, theirs)


def test_a_missing_state_is_named_with_what_to_do() -> None:
    parameter, optimizer = stepped(4)
    optimizer.param_groups[0]["amsgrad"] = True
    with pytest.raises(ValueError, match="has no 'max_exp_avg_sq'; .*or clear them to begin anew"):
        optimizer.step()


def test_steps_beyond_the_most_that_are_counted_are_refused() -> None:
    parameter, optimizer = stepped(4)
    optimizer.state[parameter]["step"] = 2**63 - 1
    with pytest.raises(ValueError, match="has counted 9223372036854775807 steps, and the most are"):
        optimizer.step()


def test_states_in_fp16_are_refused_with_nothing_loaded() -> None:
    saved = stepped(4)[1].state_dict()
    optimizer = DeepSpeedCPUAdam([a_parameter(4).half().detach()], lr=0.25, fp32_optimizer_states=False)
    with pytest.raises(ValueError, match="states in fp16 are not supported"):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert not optimizer.state
