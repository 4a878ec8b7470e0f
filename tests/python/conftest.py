"""What the tests of the package share."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sluice._program import PROGRAM

REPOSITORY = Path(__file__).resolve().parents[2]

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "optimizer": {"type": "AdamW", "params": {"lr": 4e-4, "betas": [0.9, 0.95]}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    "sluice": {"device": "host", "device_bytes": "64MiB", "host_bytes": "256MiB"},
}
MODEL = {"model_type": "gpt2", "n_layer": 3, "n_head": 4, "n_embd": 128, "n_positions": 64, "vocab_size": 256}


class Program:
    """The program of the package."""

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def json(self, *arguments: str) -> Any:
        result = self.run(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG, indent=2))
    return path


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(MODEL, indent=2))
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer."""
    from tokenizing import saved_tokenizer  # tests of engines do not need its libraries

    return saved_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@contextlib.contextmanager
def small_file_system(place: Path, size_bytes: int) -> Iterator[None]:
    """A file system in memory of this size; skips the test where the process may not mount one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, f"size={size_bytes}".encode()) != 0:
        pytest.skip(f"mounting a tmpfs: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(os.fsencode(place), 2)  # MNT_DETACH


def _counts_per_second(work: Callable[[], object]) -> float:
    """Counts of a thread while `work` runs on this one."""
    count, begun, ended = 0, threading.Event(), threading.Event()

    def counting() -> None:
        nonlocal count
        begun.set()
        while not ended.is_set():
            count += 1

    thread = threading.Thread(target=counting)
    thread.start()
    begun.wait()
    before, start = count, time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    counted = count - before
    ended.set()
    thread.join()
    return counted / seconds


def free_rates_kept(work: Callable[[], object], seconds: float) -> list[float]:
    """The share of its free rate that a counting thread keeps while `work` runs, which takes some `seconds`.

    Sorted shares of several pairs: another program on the machine moves some of them.
    """
    return sorted(_counts_per_second(work) / _counts_per_second(lambda: time.sleep(seconds)) for _ in range(7))


def exit_code_of_fork(work: Callable[[], None]) -> int:
    """Runs `work` in a forked child, which then ends as a script does; -1 when it hangs for 30 seconds."""
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(30)
    if child.exitcode is None:
        child.kill()
        child.join()
        return -1
    return child.exitcode


def public_names(module: Any) -> list[str]:
    return list(getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]))


def names_without_docstring(module: Any) -> list[str]:
    """Public functions and classes of a module, and members of its classes. Names that are imported later are left out."""
    missing: list[str] = []
    for name in set(public_names(module)) - set(getattr(module, "_LATER", ())) - set(getattr(module, "_MODULES", ())):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not inspect.getdoc(value):
            missing.append(name)
        if inspect.isclass(value):
            missing += [
                f"{name}.{part}"
                for part, member in vars(value).items()
                if not part.startswith("_") and (callable(member) or isinstance(member, property)) and not member.__doc__
            ]
    return sorted(missing)
