"""The host optimizers against torch.optim, and what they take and refuse."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import exit_code_of_fork, free_rates_kept
from sluice.ops.adagrad import DeepSpeedCPUAdagrad
from sluice.ops.adam import DeepSpeedCPUAdam
from sluice.ops.lion import DeepSpeedCPULion
from sluice.ops.sgd import CPUSGD

SHAPES = [(257, 33), (1,), (20_000,), (3, 5, 7)]
STEPS = 100


class PlainLion(torch.optim.Optimizer):
    """Chen et al. 2023, Alg. 2, in torch's operations."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                update = torch.sign(beta1 * m + (1 - beta1) * p.grad)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


Make = Callable[[Any], torch.optim.Optimizer]
PAIRS: dict[str, tuple[Make, Make]] = {
    "adamw": (
        lambda p: DeepSpeedCPUAdam(p, lr=1e-2, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    ),
    "adam with L2": (
        lambda p: DeepSpeedCPUAdam(p, lr=1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1, adamw_mode=False),
        lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    ),
    "amsgrad": (
        lambda p: DeepSpeedCPUAdam(p, lr=1e-2, amsgrad=True, adamw_mode=False),
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    ),
    "adagrad": (
        lambda p: DeepSpeedCPUAdagrad(p, lr=1e-1, weight_decay=0.01),
        lambda p: torch.optim.Adagrad(p, lr=1e-1, weight_decay=0.01),
    ),
    "lion": (
        lambda p: DeepSpeedCPULion(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1),
        lambda p: PlainLion(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1),
    ),
    "sgd": (lambda p: CPUSGD(p, lr=1e-2, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1)),
    "momentum": (
        lambda p: CPUSGD(p, lr=1e-2, momentum=0.9, dampening=0.1),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.1),
    ),
    "nesterov": (
        lambda p: CPUSGD(p, lr=1e-2, momentum=0.9, nesterov=True, maximize=True),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, maximize=True),
    ),
}


def parameters(dtype: torch.dtype = torch.float32, seed: int = 1) -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=random).to(dtype)) for shape in SHAPES]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    random = torch.Generator().manual_seed(1000 + step)
    for parameter in params:
        # At least 0.5 in size: a sign, which Lion takes, does not hang on a rounding.
        gradient = torch.randn(parameter.shape, generator=random)
        parameter.grad = (gradient + 0.5 * gradient.sign()).to(parameter.dtype)


def train(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        set_gradients(params, step)
        optimizer.step()


def difference(mine: list[torch.nn.Parameter], theirs: list[torch.nn.Parameter]) -> float:
    """The largest difference, relative to the largest element of its tensor."""
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(mine, theirs))


@pytest.mark.parametrize("name", PAIRS)
def test_fp32_follows_torch_for_100_steps(name: str) -> None:
    mine, theirs = parameters(), parameters()
    ours, torchs = (make(params) for make, params in zip(PAIRS[name], (mine, theirs)))
    train(ours, mine, range(STEPS))
    train(torchs, theirs, range(STEPS))
    apart = difference(mine, theirs)
    print(f"{name}: {apart:.3g} apart after {STEPS} steps, {difference(mine, parameters()):.3g} from the start")
    assert difference(mine, parameters()) > 1e-3  # they moved
    assert apart <= 1e-6


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_parameters_are_stepped_in_fp32_and_rounded(name: str, dtype: torch.dtype) -> None:
    """Each step equals an fp32 step from the rounded parameter, with the states of that step, rounded again."""
    mine, wide = parameters(dtype), [torch.nn.Parameter(p.detach().float()) for p in parameters(dtype)]
    ours, reference = PAIRS[name][0](mine), PAIRS[name][0](wide)
    for step in range(20):
        set_gradients(mine, step)
        for narrow, parameter in zip(mine, wide):
            parameter.grad = narrow.grad.float()
        ours.step()
        reference.step()
        with torch.no_grad():
            for narrow, parameter in zip(mine, wide):
                parameter.copy_(parameter.to(dtype))
                assert torch.equal(narrow.float(), parameter), step
    states = [value for state in ours.state.values() for value in state.values() if torch.is_tensor(value)]
    assert all(value.dtype == torch.float32 for value in states)


def test_groups_have_rates_and_decays_of_their_own() -> None:
    def groups(params: list[torch.nn.Parameter]) -> list[dict[str, Any]]:
        return [{"params": params[:2], "lr": 1e-2, "weight_decay": 0.0}, {"params": params[2:], "betas": (0.5, 0.9)}]

    mine, theirs = parameters(), parameters()
    ours = DeepSpeedCPUAdam(groups(mine), lr=1e-3, weight_decay=0.1)
    torchs = torch.optim.AdamW(groups(theirs), lr=1e-3, weight_decay=0.1)
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, lambda step: 1 / (1 + step)) for each in (ours, torchs)]
    for step in range(20):
        train(ours, mine, range(step, step + 1))
        train(torchs, theirs, range(step, step + 1))
        for schedule in schedules:
            schedule.step()
    assert difference(mine, theirs) <= 1e-6


def test_parameters_without_a_gradient_stay() -> None:
    params = parameters()
    optimizer = DeepSpeedCPUAdam(params)
    set_gradients(params, 0)
    params[1].grad = None
    before = params[1].clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert params[1] not in optimizer.state
    # Its first update comes later; the others' steps are counted on their own.
    theirs = parameters()
    torchs = torch.optim.AdamW(theirs, weight_decay=0)
    set_gradients(theirs, 0)
    theirs[1].grad = None
    torchs.step()
    train(optimizer, params, range(1, 10))
    train(torchs, theirs, range(1, 10))
    assert difference(params, theirs) <= 1e-6


def test_a_closure_computes_the_loss_with_gradients() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = CPUSGD([parameter], lr=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3
    assert torch.equal(parameter.detach(), torch.zeros(3))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_state_dict_continues_with_the_same_bits(name: str, dtype: torch.dtype) -> None:
    whole = parameters(dtype)
    train(PAIRS[name][0](whole), whole, range(20))

    first = parameters(dtype)
    begun = PAIRS[name][0](first)
    train(begun, first, range(10))
    file = io.BytesIO()
    torch.save(begun.state_dict(), file)
    file.seek(0)
    second = [torch.nn.Parameter(p.detach().clone()) for p in first]
    resumed = PAIRS[name][0](second)
    resumed.load_state_dict(torch.load(file))
    train(resumed, second, range(10, 20))
    assert all(torch.equal(a, b) for a, b in zip(whole, second))


@pytest.mark.parametrize("name", ["adamw", "amsgrad", "momentum", "nesterov"])
def test_a_state_dict_of_torch_is_taken_over(name: str) -> None:
    theirs = parameters()
    torchs = PAIRS[name][1](theirs)
    train(torchs, theirs, range(10))
    mine = [torch.nn.Parameter(p.detach().clone()) for p in theirs]
    ours = PAIRS[name][0](mine)
    ours.load_state_dict(torchs.state_dict())
    train(ours, mine, range(10, 30))
    train(torchs, theirs, range(10, 30))
    assert difference(mine, theirs) <= 1e-6


def test_a_state_that_lacks_a_moment_is_refused() -> None:
    theirs = parameters()
    torchs = torch.optim.Adagrad(theirs)
    train(torchs, theirs, range(1))
    ours = DeepSpeedCPUAdagrad(parameters())
    ours.load_state_dict(torchs.state_dict())
    set_gradients(ours.param_groups[0]["params"], 0)
    with pytest.raises(ValueError, match="has no 'exp_avg_sq'; DeepSpeedCPUAdagrad needs exp_avg_sq"):
        ours.step()


@pytest.mark.parametrize("name", PAIRS)
def test_a_copy_steps_on_its_own(name: str) -> None:
    whole = parameters()
    train(PAIRS[name][0](whole), whole, range(10))
    params = parameters()
    optimizer = PAIRS[name][0](params)
    train(optimizer, params, range(5))
    copied, copies = copy.deepcopy((optimizer, params))
    train(copied, copies, range(5, 10))
    assert all(torch.equal(a, b) for a, b in zip(whole, copies))
    assert not torch.equal(params[0], copies[0])


def test_bf16_states_of_bf16_parameters() -> None:
    mine, wide = parameters(torch.bfloat16), parameters(torch.bfloat16)
    ours = DeepSpeedCPUAdam(mine, lr=1e-2, fp32_optimizer_states=False)
    train(ours, mine, range(STEPS))
    train(DeepSpeedCPUAdam(wide, lr=1e-2), wide, range(STEPS))
    assert ours.state[mine[0]]["exp_avg"].dtype == torch.bfloat16
    # 8 bits of precision in states and parameters: a path near that of fp32 states, not the same one.
    assert difference([p.float() for p in mine], [p.float() for p in wide]) <= 0.05
    again = parameters(torch.bfloat16)
    train(DeepSpeedCPUAdam(again, lr=1e-2, fp32_optimizer_states=False), again, range(STEPS))
    assert all(torch.equal(a, b) for a, b in zip(mine, again))  # random rounding, by a fixed key


def step_of(parameter: torch.nn.Parameter) -> Callable[[], Any]:
    return DeepSpeedCPUAdam([parameter]).step


def test_what_is_refused() -> None:
    wrong = torch.nn.Parameter(torch.ones(4, 4, device="meta"))
    wrong.grad = torch.ones(4, 4, device="meta")
    with pytest.raises(AssertionError, match="param is on meta and must be 'cpu'.*parameter 0 of group 0"):
        step_of(wrong)()
    wrong = torch.nn.Parameter(torch.ones(4, 4).t()[:, 1:])
    wrong.grad = torch.ones(4, 3)
    with pytest.raises(ValueError, match="parameter 0 of group 0 is not contiguous"):
        step_of(wrong)()
    wrong = torch.nn.Parameter(torch.ones(4, 4))
    wrong.grad = torch.ones(8, 4)[::2]
    with pytest.raises(ValueError, match="the gradient of parameter 0 of group 0 is not contiguous"):
        step_of(wrong)()
    wrong = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    wrong.grad = torch.ones(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="float64; DeepSpeedCPUAdam takes fp32, bf16 and fp16"):
        step_of(wrong)()
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="gradient of parameter 0 of group 0 is sparse"):
        step_of(embedding.weight)()
    wrong = torch.nn.Parameter(torch.ones(4, dtype=torch.float16))
    wrong.grad = torch.ones(4, dtype=torch.float16)
    with pytest.raises(ValueError, match="states in fp16 are not supported"):
        DeepSpeedCPUAdam([wrong], fp32_optimizer_states=False).step()


def test_constants_out_of_range_are_refused_at_once() -> None:
    params = parameters()
    with pytest.raises(ValueError, match="learning_rate is -1"):
        DeepSpeedCPUAdam(params, lr=-1)
    with pytest.raises(ValueError, match="beta2 is 1"):
        DeepSpeedCPULion(params, betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="nesterov"):
        CPUSGD(params, nesterov=True)
    with pytest.raises(ValueError, match="amsgrad is a form of Adam"):
        DeepSpeedCPUAdagrad(params, amsgrad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_parameter_that_becomes_non_finite_is_warned_of(dtype: torch.dtype) -> None:
    params = parameters(dtype)
    optimizer = DeepSpeedCPUAdam(params)
    set_gradients(params, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    params[2].grad[7] = float("nan")
    with pytest.warns(RuntimeWarning, match="step 2 made parameter 2 of group 0 or its states non-finite"):
        optimizer.step()


def test_threads_change_no_bit() -> None:
    results = []
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        params = parameters(torch.bfloat16)
        optimizer = DeepSpeedCPUAdam(params)
        torch.set_num_threads(before)
        train(optimizer, params, range(5))
        results.append(params)
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_step_releases_the_gil() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    params = [torch.nn.Parameter(torch.ones(20_000_000))]
    params[0].grad = torch.ones(20_000_000)
    optimizer = DeepSpeedCPUAdam(params)
    torch.set_num_threads(before)
    optimizer.step()  # makes the states
    kept = free_rates_kept(lambda: [optimizer.step() for _ in range(4)], 0.2)[-1]
    print(f"a thread that counts keeps {kept:.2f} of its free rate during step()")
    assert kept >= 0.5


def test_a_forked_child_steps_and_ends() -> None:
    whole = parameters()
    train(DeepSpeedCPUAdam(whole), whole, range(10))
    params = parameters()
    optimizer = DeepSpeedCPUAdam(params)
    train(optimizer, params, range(5))

    def child() -> None:
        torch.set_num_threads(1)  # PyTorch's own threads do not survive a fork
        train(optimizer, params, range(5, 10))
        assert all(torch.equal(a, b) for a, b in zip(whole, params))
        fresh = parameters()
        train(DeepSpeedCPUAdam(fresh), fresh, range(10))
        assert all(torch.equal(a, b) for a, b in zip(whole, fresh))

    assert exit_code_of_fork(child) == 0
    train(optimizer, params, range(5, 10))  # the parent's goes on
    assert all(torch.equal(a, b) for a, b in zip(whole, params))


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
@pytest.mark.parametrize("kind", [CPUSGD, DeepSpeedCPUAdam, DeepSpeedCPUAdagrad, DeepSpeedCPULion])
def test_a_parameter_twice_in_a_group_is_refused(kind: Any) -> None:
    one, other, third = (torch.nn.Parameter(torch.ones(5)) for _ in range(3))
    with pytest.raises(ValueError, match=rf"parameters 0 and 2 of group 0 are one parameter, .* {kind.__name__} would update twice"):
        kind([one, other, one], lr=0.1)
    optimizer = kind([one], lr=0.1)
    with pytest.raises(ValueError, match="parameters 0 and 1 of group 1 are one parameter"):
        optimizer.add_param_group({"params": [other, other]})
    optimizer.add_param_group({"params": [other, third]})  # the group that was refused has left nothing
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]
