"""Ctrl-C at any place leaves an engine that trains on, and a process that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import VOCAB, Tied, batch, config, engine_of, loss_of, make, train
from torch import nn

import sluice
from sluice._training.passes.interrupts import interrupts_later


class UsesOther(Tied):
    """The head's weight is looked up from the model's forward, outside of its unit."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return nn.functional.linear(self.norm(x), self.embedding.weight)


def interrupt_after(loop: Any, name: str, at: int, number: signal.Signals = signal.SIGINT, times: int = 1) -> None:
    """A signal comes while call number `at` of the loop's method runs, as it does while a call waits."""
    method, count = getattr(loop, name), 0

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        result = method(*arguments, **keywords)
        count += 1
        if count == at:
            for _ in range(times):
                signal.raise_signal(number)
        return result

    setattr(loop, name, call)


MANY = ("enter", "leave", "begin_gradients", "send_gradients")  # in each step
CALLS = [(name, at) for name in MANY for at in (1, 2, 3)] + [("start_backward", 1), ("end_micro_batch", 1)]


@pytest.mark.parametrize(("name", "at"), CALLS)
@pytest.mark.parametrize("model", [Tied, UsesOther])
def test_training_goes_on_after_an_interrupt(model: type[nn.Module], name: str, at: int) -> None:
    reference = engine_of(make(model))
    expected = train(reference, range(4))
    reference.destroy()
    engine = engine_of(make(model))
    losses = train(engine, range(2))
    interrupt_after(engine.loop, name, at)
    with pytest.raises(KeyboardInterrupt):
        train(engine, range(2, 3))
    delattr(engine.loop, name)
    assert engine.global_steps == 2
    assert losses + train(engine, range(2, 4)) == expected
    engine.destroy()


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.scale * self.inner(x)


class Nested(nn.Module):
    """A unit inside a unit, and a weight that the model's forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.outer, self.head = nn.Embedding(VOCAB, 64), Outer(), nn.Linear(64, VOCAB)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.outer(self.embedding(ids)), self.head.weight)


class Late(Exception):
    """PyTorch calls the hooks of units around the one in which it comes, as it does not for a KeyboardInterrupt."""


@pytest.mark.parametrize("calls_a_unit", [False, True])
@pytest.mark.parametrize("name", ["enter", "leave"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_training_goes_on_after_an_exception_of_a_signal_in_a_forward(name: str, at: int, calls_a_unit: bool) -> None:
    def late(*_: Any) -> None:
        raise Late

    reference = engine_of(make(Nested))
    expected = train(reference, range(3))
    reference.destroy()
    engine = engine_of(make(Nested), units=["embedding", "outer", "outer.inner", "head"])
    before = signal.signal(signal.SIGALRM, late)
    try:
        losses = train(engine, range(1))
        interrupt_after(engine.loop, name, at, signal.SIGALRM)
        with pytest.raises(Late):
            engine.module(batch(100)[0]) if calls_a_unit else train(engine, range(1, 2))
        delattr(engine.loop, name)
        if calls_a_unit:
            with torch.no_grad():
                engine.module.embedding(batch(0)[0])
        assert losses + train(engine, range(1, 3)) == expected
    finally:
        signal.signal(signal.SIGALRM, before)
    engine.destroy()


def test_an_interrupt_at_the_end_of_a_step_comes_after_it() -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}
    reference = engine_of(make(), config(scheduler=warmup))
    expected = train(reference, range(4))
    reference.destroy()
    engine = engine_of(make(), config(scheduler=warmup))
    losses = train(engine, range(2))
    interrupt_after(engine.loop, "end_step", 1)
    ids, targets = batch(200)
    loss = loss_of(engine(ids), targets)
    engine.backward(loss)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert engine.global_steps == 3
    delattr(engine.loop, "end_step")
    assert [*losses, loss.item(), *train(engine, range(3, 4))] == expected
    engine.destroy()


def test_an_interrupt_in_a_loop_of_ones_own_comes_after_its_step() -> None:
    courses = []
    for interrupted in (False, True):
        model = make()
        optimizer = sluice.offload(model, config())
        losses = []
        for step in range(4):
            if interrupted and step == 2:
                interrupt_after(optimizer._offloaded.loop, "end_step", 1)
            loss = loss_of(model(batch(step)[0]), batch(step)[1])
            loss.backward()
            try:
                optimizer.step()
            except KeyboardInterrupt:
                assert interrupted and step == 2
            losses.append(loss.item())
        assert optimizer.steps == 4
        optimizer.close()
        courses.append(losses)
    assert courses[0] == courses[1]


class Stop(BaseException):
    """Raised by a script's handler."""


@pytest.fixture
def handled(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """The signal has a handler of the script's own, which raises."""

    def stop(number: int, frame: Any) -> None:
        raise Stop(number)

    before = signal.signal(request.param, stop)
    yield request.param
    signal.signal(request.param, before)


HANDLED = [signal.SIGTERM, signal.SIGALRM, signal.SIGINT, signal.SIGCHLD, signal.SIGRTMIN]
WARMUP = {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 1e-2}}


@pytest.mark.parametrize("handled", HANDLED, indirect=True)
def test_a_handler_of_the_script_comes_after_a_step_that_can_be_saved(handled: signal.Signals, tmp_path: Path) -> None:
    reference = engine_of(make(), config(scheduler=WARMUP))
    expected = train(reference, range(4))
    reference.destroy()
    engine = engine_of(make(), config(scheduler=WARMUP))
    losses = train(engine, range(2))
    interrupt_after(engine.loop, "end_step", 1, handled)
    with pytest.raises(Stop):
        train(engine, range(2, 3))
    delattr(engine.loop, "end_step")
    assert (engine.global_steps, engine.global_samples) == (3, 3 * engine.train_batch_size())
    engine.save_checkpoint(str(tmp_path))
    engine.destroy()
    engine = engine_of(make(), config(scheduler=WARMUP))
    engine.load_checkpoint(str(tmp_path))
    assert losses == expected[:2]
    assert train(engine, range(3, 4)) == expected[3:]
    engine.destroy()


@pytest.mark.parametrize("handled", [signal.SIGTERM], indirect=True)
def test_signals_that_come_twice_in_a_step_are_one(handled: signal.Signals) -> None:
    engine = engine_of(make())
    interrupt_after(engine.loop, "end_step", 1, handled, times=2)
    with pytest.raises(Stop):
        train(engine, range(1))
    assert engine.global_steps == 1
    engine.destroy()


def test_each_handler_runs_and_none_is_lost_to_another_ones_error() -> None:
    ran: list[int] = []

    def stop(number: int, frame: Any) -> None:
        ran.append(number)
        raise Stop(number)

    numbers = [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]
    before = {number: signal.signal(number, stop) for number in numbers}
    with pytest.raises(Stop) as caught, interrupts_later():
        for number in numbers:
            signal.raise_signal(number)
        assert ran == []
    assert ran == numbers
    assert [signal.getsignal(number) for number in numbers] == [stop] * 3
    assert caught.value.args == (signal.SIGHUP,) and isinstance(caught.value.__context__, Stop)
    for number in numbers:
        signal.signal(number, before[number])


def test_a_handler_that_the_step_sets_stays() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with interrupts_later():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    signal.signal(signal.SIGUSR1, before)


def test_a_step_that_a_second_interrupt_cuts_is_not_saved_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(make())
    train(engine, range(1))
    interrupt_after(engine.loop, "end_step", 1, times=2)
    with pytest.raises(KeyboardInterrupt):
        train(engine, range(1, 2))
    delattr(engine.loop, "end_step")
    with pytest.raises(sluice.Error, match="global_steps is 1, and the weights have taken 2 steps"):
        engine.save_checkpoint(str(tmp_path))
    assert not list(tmp_path.iterdir())
    train(engine, range(2, 3))
    assert "global_steps is 1, and the weights have taken 2 steps" in caplog.text
    assert engine.global_steps == 3
    engine.save_checkpoint(str(tmp_path))
    engine.destroy()


def test_an_interrupt_is_not_lost_to_an_error_of_the_step() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupts_later():
        signal.raise_signal(signal.SIGINT)
        raise OSError
    assert isinstance(caught.value.__context__, OSError)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


SCRIPT = """
import itertools, sys
sys.path.insert(0, sys.argv[1])
from small_models import *
engine = engine_of(make(), config("nvme", sys.argv[2], gradient_clipping=1.0))
for step in itertools.count():
    train(engine, range(step, step + 1))
    print(step, flush=True)
"""


@pytest.mark.parametrize("delay", [0.0, 0.011, 0.017, 0.029])
def test_a_process_that_is_interrupted_ends(delay: float, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() != "3\n":
        assert process.poll() is None
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT)
    assert errors.splitlines()[-1].startswith("KeyboardInterrupt")
    assert "the end of training failed" not in errors


FORKING = """
import os, sys
from small_models import batch, engine_of, loss_of, make
engine = engine_of(make())
ids, targets = batch(0)
engine.backward(loss_of(engine(ids), targets))
sys.stdout.flush()
if os.fork() == 0:
    if sys.argv[1] == "use":
        try:
            engine.step()
        except RuntimeError as error:
            print("child:", error)
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
engine.step()
print("parent: step", engine.global_steps)
"""


@pytest.mark.parametrize("what", ["end", "use"])
def test_a_forked_child_ends_and_leaves_its_parents_engine_alone(what: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, what]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "parent: step 1" in result.stdout
    assert ("child: a forked child has none of the engine's threads" in result.stdout) == (what == "use")


READS: dict[str, Callable[[nn.Module, Any, Path], Any]] = {
    "weights": lambda model, _, __: model.state_dict(),
    "master": lambda model, _, __: sluice.utils.safe_get_full_fp32_param(model.norm.weight),
    "save": lambda _, optimizer, place: optimizer.save_checkpoint(place / "other"),
    "load": lambda _, optimizer, place: optimizer.load_checkpoint(place / "saved"),
    "zero_grad": lambda _, optimizer, __: optimizer.zero_grad(),
    "step": lambda _, optimizer, __: optimizer.step(),
}


@pytest.mark.parametrize("model", [Tied, UsesOther])
@pytest.mark.parametrize("what", READS)
def test_an_interrupt_in_a_forward_of_ones_own_leaves_its_units(what: str, model: type[nn.Module], tmp_path: Path) -> None:
    trained = make(model)
    optimizer = sluice.offload(trained, config())

    def train_on(steps: range) -> list[float]:
        losses = []
        for step in steps:
            loss = loss_of(trained(batch(step)[0]), batch(step)[1])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    train_on(range(2))
    optimizer.save_checkpoint(tmp_path / "saved")
    weights = trained.state_dict()

    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    if what == "step":  # with the gradients of a whole micro-batch
        loss_of(trained(batch(2)[0]), batch(2)[1]).backward()
    hook = trained.blocks[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        trained(batch(9)[0])
    hook.remove()
    READS[what](trained, optimizer, tmp_path)
    if what != "step":
        assert all(torch.equal(value, weights[name]) for name, value in trained.state_dict().items())
    train_on(range(3, 5))
    assert optimizer.steps == (5 if what == "step" else 4)
    optimizer.close()


def test_weights_are_not_read_inside_a_forward() -> None:
    model = make()
    optimizer = sluice.offload(model, config())
    hook = model.blocks[1].register_forward_hook(lambda *_: sluice.utils.safe_get_full_fp32_param(model.blocks[1].norm.weight))
    with pytest.raises(ValueError, match="inside a unit's forward or backward"):
        model(batch(0)[0])
    hook.remove()
    model(batch(0)[0])
    optimizer.close()
