"""Threads of a script that use one engine: they may take turns, and one that comes into another's pass is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_models import config, engine_of

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


@pytest.mark.parametrize(("where", "said"), [("forward", "is inside one"), ("backward", "is inside a backward")])
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
