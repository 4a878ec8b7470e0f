"""Gradients that are lost or dropped on their way: the step begins anew, with all of its micro-batches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import config, engine_of
from torch import nn

import sluice
from sluice.utils import safe_get_full_fp32_param, safe_get_full_grad

WIDTH = 256
SGD = {"type": "SGD", "params": {"lr": 0.1}}


def layers(width: int, count: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(count)])


def data(number: int, width: int) -> torch.Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(number))


def backward(engine: sluice.SluiceEngine, x: torch.Tensor) -> None:
    engine.backward(engine(x).square().mean() * 1000)


def logs(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    """Whether a line has the text; a thread hands it on."""
    end = time.monotonic() + 60
    while text not in caplog.text and time.monotonic() < end:
        time.sleep(0.01)
    return text in caplog.text


def assert_one_step(engine: sluice.SluiceEngine, plain: nn.Module, inputs: list[torch.Tensor]) -> None:
    """The weights are those after one step of plain PyTorch with these micro-batches."""
    assert engine.global_steps == 1
    for x in inputs:
        (plain(x).square().mean() * 1000 / len(inputs)).backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(engine.module_state_dict()[name], value, rtol=1e-5, atol=1e-6)


def on_drive(folder: Path) -> sluice.SluiceEngine:
    """Its gradients wait on the drive, in steps of two micro-batches."""
    keys = config("nvme", folder, optimizer=SGD, gradient_accumulation_steps=2, gradient_clipping=1e9)
    keys["sluice"] = {"device": "host", "host_bytes": "3900KiB", "threads": {"compute": 2}}
    engine = engine_of(layers(WIDTH, 8), keys)
    assert re.search(r"gradients +- +- +2\.00 MiB", engine.loop.plan_table)
    return engine


@contextlib.contextmanager
def full_disk(module: nn.Module) -> Iterator[None]:
    """Inside, files end at 4 KiB from the module's backward on."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(_: torch.Tensor) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))

    handle = module.register_forward_hook(lambda _, __, output: output.register_hook(limit) and None)
    try:
        yield
    finally:
        handle.remove()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


CALLS: dict[str, Callable[[sluice.SluiceEngine, Path], Any]] = {
    "step": lambda engine, _: engine.step(),
    "read": lambda engine, _: safe_get_full_fp32_param(engine.module[7].weight),
    "save": lambda engine, folder: engine.save_checkpoint(folder / "saved"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_step_whose_gradients_found_no_room_begins_anew(call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = on_drive(tmp_path)
    backward(engine, data(0, WIDTH))
    engine.step()
    with full_disk(engine.module[0]), pytest.raises(OSError):
        backward(engine, data(1, WIDTH))
        CALLS[call](engine, tmp_path)
    for number in (2, 3):
        backward(engine, data(number, WIDTH))
        engine.step()
    assert logs(caplog, "those of this step so far are dropped")
    assert_one_step(engine, layers(WIDTH, 8), [data(2, WIDTH), data(3, WIDTH)])
    engine.destroy()


def test_a_step_that_must_not_be_skipped_begins_anew() -> None:
    keys = config(optimizer=SGD, gradient_accumulation_steps=2, gradient_clipping=1e9, sluice={"non_finite": "stop"})
    engine = engine_of(layers(8, 2), keys)
    backward(engine, data(0, 8))
    engine.step()
    backward(engine, data(1, 8) * float("inf"))
    with pytest.raises(sluice.Error, match="training stops before this update"):
        engine.step()
    backward(engine, data(2, 8))
    engine.step()
    assert engine.global_steps == 0
    backward(engine, data(3, 8))
    engine.step()
    assert_one_step(engine, layers(8, 2), [data(2, 8), data(3, 8)])
    engine.destroy()


def test_a_step_in_which_loading_failed_begins_anew_or_goes_on(tmp_path: Path) -> None:
    engine = engine_of(layers(8, 2), config(optimizer=SGD, gradient_accumulation_steps=2))
    engine.save_checkpoint(tmp_path, tag="a")
    backward(engine, data(0, 8))
    engine.step()
    with pytest.raises(FileNotFoundError):
        engine.load_checkpoint(tmp_path, tag="b")
    assert engine.loop.micro_batches.counted == 1  # nothing has changed
    with contextlib.ExitStack() as held:
        for path in tmp_path.rglob("lock"):
            fcntl.flock(held.enter_context(path.open("r+")), fcntl.LOCK_EX)
        with pytest.raises(sluice.StorageError):
            engine.load_checkpoint(tmp_path, tag="a")
    assert engine.loop.micro_batches.counted == 0
    for number in (1, 2):
        backward(engine, data(number, 8))
        engine.step()
    assert_one_step(engine, layers(8, 2), [data(1, 8), data(2, 8)])
    engine.destroy()


def test_a_gradient_that_cannot_be_read_stays_in_the_step(tmp_path: Path) -> None:
    engine = on_drive(tmp_path)
    weight = engine.module[7].weight
    backward(engine, data(0, WIDTH))
    engine.step()
    assert safe_get_full_grad(weight) is not None  # all gradients are on the drive now
    (file,) = tmp_path.rglob("scratch.*")
    content = file.read_bytes()
    os.truncate(file, 0)
    with pytest.raises(OSError):
        safe_get_full_grad(weight)
    with file.open("r+b") as opened:
        opened.write(content)
    backward(engine, data(1, WIDTH))
    engine.step()
    assert_one_step(engine, layers(WIDTH, 8), [data(0, WIDTH), data(1, WIDTH)])
    engine.destroy()
