"""Threads of a script that use one engine: they may take turns, and one that comes into another's pass is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from small_models import config, engine_of
from torch.utils.checkpoint import checkpoint

from sluice.utils import safe_get_full_fp32_param
from sluice.zero import GatheredParameters

SECONDS = 60.0


class Waits(torch.nn.Module):
    """Its forward, or its backward, tells that it is reached, and waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.where = ""
        self.is_reached, self.may_go_on = threading.Event(), threading.Event()

    def wait(self, _: object = None) -> None:
        self.is_reached.set()
        assert self.may_go_on.wait(SECONDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.where == "begin of forward":
            self.wait()
        y: torch.Tensor = self.inner(x)
        if self.where == "forward":
            self.wait()
        if self.where == "backward" and y.requires_grad:
            y.register_hook(self.wait)  # type: ignore[no-untyped-call]
        if self.where == "ends":
            raise KeyboardInterrupt
        return y


def a_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), Waits(), torch.nn.Linear(8, 1))


def values(number: int) -> torch.Tensor:
    return torch.randn(2, 8, generator=torch.Generator().manual_seed(number))


@torch.enable_grad()
def trained_plainly(steps: int) -> torch.nn.Module:
    model = a_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(steps):
        model(values(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize(("where", "said"), [("forward", "is inside a forward"), ("backward", "is inside a backward")])
def test_a_forward_inside_another_threads_pass_is_refused_and_changes_nothing(where: str, said: str) -> None:
    model = a_model()
    waits, engine = model[1], engine_of(model, config())
    waits.where = where

    def step() -> None:
        engine.backward(engine(values(0)).square().mean())
        engine.step()

    with ThreadPoolExecutor(1, "trains") as pool:
        running = pool.submit(step)
        assert waits.is_reached.wait(SECONDS)
        try:
            message = f"in the thread MainThread, and the thread trains_0 {said}.*Lock"
            assert isinstance(model[2].weight, torch.nn.Parameter)  # to look at a parameter is no use of it
            for _ in range(2):
                with torch.no_grad(), pytest.raises(ValueError, match=message):
                    engine(values(1))
        finally:
            waits.may_go_on.set()
        running.result()
    waits.where = ""
    with torch.no_grad():
        torch.testing.assert_close(engine(values(1)), trained_plainly(1)(values(1)))
    engine.destroy()


def test_two_evaluations_at_once_give_errors_and_no_wrong_outputs(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = engine_of(a_model(), config("nvme", tmp_path_factory.mktemp("swap")))
    plain, begin = a_model(), threading.Barrier(2)

    def evaluate(first: int) -> int:
        begin.wait(SECONDS)
        right = 0
        for number in range(first, first + 100):
            try:
                with torch.no_grad():
                    output = engine(values(number))
            except ValueError as error:
                assert "one pass at a time" in str(error)  # noqa: PT017
                continue
            torch.testing.assert_close(output, plain(values(number)))
            right += 1
        return right

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(evaluate, (0, 100))) > 0
    engine.destroy()


def test_threads_take_turns() -> None:
    engine = engine_of(a_model(), config())
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for step in range(3):
            loss = first.submit(lambda number=step: engine(values(number)).square().mean()).result()
            second.submit(engine.backward, loss).result()
            engine.step()
    with torch.no_grad():
        torch.testing.assert_close(engine(values(9)), trained_plainly(3)(values(9)))
    engine.destroy()


def test_a_thread_that_ended_inside_its_forward_is_in_nobodys_way() -> None:
    model = a_model()
    waits, engine = model[1], engine_of(model, config())
    waits.where = "ends"
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt):
        pool.submit(engine.module, values(0)).result()
    waits.where = ""
    with torch.no_grad():
        torch.testing.assert_close(engine(values(0)), a_model()(values(0)))
    engine.destroy()


def trained_on(first: ThreadPoolExecutor, second: ThreadPoolExecutor, inside: Callable[[Any], object], by_engine: bool = True) -> Any:
    """The weights after a step whose forwards the first thread makes, and its backward the second; ``inside`` this backward."""
    model = a_model()
    waits, engine = model[1], engine_of(model, config())
    waits.where = "backward"
    loss = first.submit(lambda: engine(values(0)).square().mean()).result()
    waits.where = ""
    running = second.submit(engine.backward if by_engine else torch.Tensor.backward, loss)
    assert waits.is_reached.wait(SECONDS)
    try:
        with pytest.raises(ValueError, match="and the thread second_0 is inside a backward"):
            inside(engine)
    finally:
        waits.may_go_on.set()
    running.result()
    engine.step()
    weights = engine.module_state_dict()
    engine.destroy()
    return weights


@torch.no_grad()
def evaluated(engine: Any) -> None:
    engine(values(1))


def gathered(engine: Any) -> None:
    with GatheredParameters(engine.module[0].weight, modifier_rank=0):
        engine.module[0].weight.data.zero_()


READS: dict[str, Callable[[Any], object]] = {
    "GatheredParameters": gathered,
    "state dict": lambda engine: engine.module_state_dict(),
    "zero_grad": lambda engine: engine.zero_grad(),
    "parameter": lambda engine: safe_get_full_fp32_param(engine.module[0].weight),
    "step": lambda engine: engine.step(),
}


@pytest.mark.parametrize("by_engine", [True, False])
@pytest.mark.parametrize("what", [*READS, "forward"])
def test_a_backward_of_a_thread_that_made_no_forward_keeps_its_gradients(what: str, by_engine: bool) -> None:
    with ThreadPoolExecutor(1, "first") as first, ThreadPoolExecutor(1, "second") as second:
        inside = READS.get(what, lambda engine: first.submit(evaluated, engine).result())
        weights = trained_on(first, second, inside, by_engine)
    torch.testing.assert_close(weights, dict(trained_plainly(1).state_dict()))


@pytest.mark.parametrize("by_engine", [True, False])
def test_a_backward_inside_another_threads_forward_is_refused_and_changes_nothing(by_engine: bool) -> None:
    model = a_model()
    waits, engine = model[1], engine_of(model, config())
    loss = engine(values(0)).square().mean()
    waits.where = "forward"
    with ThreadPoolExecutor(1, "evaluates") as pool:
        running = pool.submit(lambda: engine.module(values(1)))
        assert waits.is_reached.wait(SECONDS)
        try:
            with pytest.raises(ValueError, match="a backward begins in the thread MainThread, and the thread evaluates_0 is inside a"):
                engine.backward(loss) if by_engine else loss.backward()
        finally:
            waits.may_go_on.set()
        torch.testing.assert_close(running.result(), a_model()(values(1)))
    waits.where = ""
    engine.backward(engine(values(0)).square().mean())
    engine.step()
    torch.testing.assert_close(engine.module_state_dict(), dict(trained_plainly(1).state_dict()))
    engine.destroy()


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return values(number), torch.zeros(2, 1)


def stepped(engine: Any, outputs: list[torch.Tensor], by_engine: bool = True) -> None:
    """A step of two micro-batches, whose outputs may be there."""
    for output in outputs:
        loss = output.square().mean()
        engine.backward(loss) if by_engine else loss.backward()
        engine.step()


AFTERWARDS: dict[str, Callable[[Any, torch.Tensor], object]] = {
    "train_batch": lambda engine, output: engine.train_batch(iter([batch(0), batch(0)]), squared),
    "forwards": lambda engine, output: stepped(engine, [engine(values(0)), engine(values(0))]),
    "backwards": lambda engine, output: stepped(engine, [output, engine(values(0))]),
    "backwards of the script": lambda engine, output: stepped(engine, [output, engine(values(0))], by_engine=False),
}


def output_beside_a_refused_step(engine: Any, pool: ThreadPoolExecutor) -> torch.Tensor:
    """Of a forward that another thread makes, while train_batch() comes into it with its second micro-batch."""
    waits, running = engine.module[1], []

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield batch(1)
        waits.where = "begin of forward"
        running.append(pool.submit(lambda: engine(values(0))))
        assert waits.is_reached.wait(SECONDS)
        yield batch(2)

    try:
        with pytest.raises(ValueError, match="the thread evaluates_0 is inside a forward"):
            engine.train_batch(batches(), squared)
    finally:
        waits.may_go_on.set()
    output: torch.Tensor = running[0].result()
    waits.where = ""
    torch.testing.assert_close(output, a_model()(values(0)))
    return output


@pytest.mark.parametrize("next_call", AFTERWARDS)
def test_a_step_that_another_threads_forward_ends_is_dropped_after_that_forward(next_call: str) -> None:
    engine = engine_of(a_model(), config(gradient_accumulation_steps=2))
    with ThreadPoolExecutor(1, "evaluates") as pool:
        output = output_beside_a_refused_step(engine, pool)
    AFTERWARDS[next_call](engine, output)
    plain = a_model()
    squared(plain(values(0)), torch.zeros(2, 1)).backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.get_total_norm(each.grad for each in plain.parameters() if each.grad is not None)
    assert engine.get_global_grad_norm() == pytest.approx(norm.item())
    torch.testing.assert_close(engine.module_state_dict(), dict(trained_plainly(1).state_dict()))
    engine.destroy()


def test_a_forward_while_another_threads_backward_is_still_in_the_loss_is_refused() -> None:
    model = a_model()
    engine = engine_of(model, config())
    waits = Waits()
    output = engine(values(0))
    output.register_hook(waits.wait)
    with ThreadPoolExecutor(1, "trains") as pool:
        running = pool.submit(engine.backward, output.square().mean())
        assert waits.is_reached.wait(SECONDS)
        try:
            with pytest.raises(ValueError, match="the thread trains_0 is inside a backward"):
                evaluated(engine)
        finally:
            waits.may_go_on.set()
        running.result()
    engine.step()
    torch.testing.assert_close(engine.module_state_dict(), dict(trained_plainly(1).state_dict()))
    engine.destroy()


def test_threads_of_pytorch_that_run_a_backward_are_no_others() -> None:
    depth = 70  # of backwards inside one another: PyTorch runs those after the first 60 in threads of a pool

    def nested(value: torch.Tensor, left: int) -> torch.Tensor:
        if left == 0:
            return engine(value)
        return checkpoint(nested, value, left - 1, use_reentrant=True)

    engine, plain = engine_of(a_model(), config()), trained_plainly(1)
    engine.backward(nested(values(0).requires_grad_(), depth).square().mean())
    engine.step()
    torch.testing.assert_close(engine.module_state_dict(), dict(plain.state_dict()))
    engine.destroy()


def test_a_backward_after_a_failed_one_has_its_gradients() -> None:
    model = a_model()
    engine = engine_of(model, config())
    failing, right = engine(values(1)), engine(values(0))
    handle = model[0].weight.register_hook(fails)
    with pytest.raises(KeyError):
        failing.square().mean().backward()
    handle.remove()
    right.square().mean().backward()
    engine.step()
    torch.testing.assert_close(engine.module_state_dict(), dict(trained_plainly(1).state_dict()))
    engine.destroy()


def fails(gradient: torch.Tensor) -> None:
    raise KeyError


# In a process of its own: where a thread that compiled has ended, PyTorch 2.11 crashes at the next compilation.
COMPILED = """
import sys
sys.path[:0] = sys.argv[1:]
from concurrent.futures import ThreadPoolExecutor
import torch, torch._dynamo.utils
from small_models import config, engine_of
from threads_test import Borrows, a_model, output_beside_a_refused_step, values
"""

NO_MORE_GRAPHS = """
model = a_model()
engine = engine_of(torch.nn.Sequential(model[0], torch.nn.Tanh(), model[2]), config())
compiled = torch.compile(engine.module, backend="eager")
graphs = []
with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
    for pool in (first, second, first):
        engine.backward(pool.submit(lambda: compiled(values(0)).square().mean()).result())
        engine.step()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
breaks = str(dict(torch._dynamo.utils.counters["graph_break"]))
assert "get_ident" not in breaks, breaks
assert "_current_graph_task_id" not in breaks, breaks
# PyTorch 2.13 and 2.15 compile the layers too, which 2.11 leaves alone.
assert graphs == [3 if torch.__version__.startswith(("2.13.", "2.15.")) else 1] * 3, graphs
"""

BORROWED = """
model = Borrows()
expected = model(values(0)).detach()
engine = engine_of(model, config())
compiled = torch.compile(engine.module, backend="eager")
with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
    for pool in (first, second, first):
        torch.testing.assert_close(pool.submit(compiled, values(0)).result().detach(), expected)
"""

DROPPED_LATER = """
engine = engine_of(a_model(), config(gradient_accumulation_steps=2))
compiled = torch.compile(engine.module, backend="eager")
compiled(values(0))
with ThreadPoolExecutor(1, "evaluates") as pool:
    expected = output_beside_a_refused_step(engine, pool)
    torch.testing.assert_close(compiled(values(0)), expected)
assert engine.is_gradient_accumulation_boundary() is False  # its step begins anew
"""


class Borrows(torch.nn.Module):
    """Uses a weight of a unit before it calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def by_function(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, self.inner.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.inner(self.by_function(x)))
        return y


@pytest.mark.parametrize("code", [NO_MORE_GRAPHS, BORROWED, DROPPED_LATER])
def test_threads_of_a_compiled_model_take_turns(code: str) -> None:
    here = Path(__file__).parent
    process = forked.Process(["-c", COMPILED + code, here.parent.parent, here.parent, here], os.environ)
    output, errors = process.communicate(SECONDS)
    assert process.returncode == 0, output + errors
