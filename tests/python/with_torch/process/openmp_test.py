"""OpenMP, which PyTorch loads: how its threads wait, and a thread that it bound to one core."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch
from small_models import config, engine_of, make

from sluice._training import devices

PLAN = """
import {imports}
config = {{"train_batch_size": 1, "optimizer": {{"type": "Adam"}}, "sluice": {{"device": "host", "threads": {{"compute": {threads}}}}}}}
print(*sluice.plan(torch.nn.Linear(8, 8), config).choices, sep="\\n")
"""


def planned(imports: str, threads: int = 2, **settings: str) -> subprocess.CompletedProcess[str]:
    """A process that imports both in this order and plans; with OMP_DISPLAY_ENV OpenMP says itself what it read."""
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    code = PLAN.format(imports=imports, threads=threads)
    command = [sys.executable, "-c", code]
    environment = {**others, "OMP_DISPLAY_ENV": "VERBOSE", **settings}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result


def test_threads_spin_shortly_where_sluice_is_imported_first() -> None:
    result = planned("sluice, torch")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in result.stderr
    assert "GOMP_SPINCOUNT = '1000'" in result.stderr
    assert "waits of OpenMP" not in result.stdout


def test_a_plan_says_that_threads_spin_where_pytorch_is_imported_first() -> None:
    result = planned("torch, sluice")
    assert "GOMP_SPINCOUNT = '300000'" in result.stderr
    assert "waits of OpenMP: PyTorch was imported before sluice" in result.stdout
    assert "waits of OpenMP" not in planned("torch, sluice", threads=1).stdout
    assert "waits of OpenMP" not in planned("torch, sluice", OMP_WAIT_POLICY="active").stdout


def test_a_bound_thread_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    cores = os.sched_getaffinity(0)
    devices.warn_if_bound.cache_clear()
    try:
        os.sched_setaffinity(0, {min(cores)})
        with caplog.at_level(logging.WARNING, logger="sluice"):
            for _ in range(2):
                engine_of(make(), config()).destroy()
    finally:
        os.sched_setaffinity(0, cores)
        devices.warn_if_bound.cache_clear()
    lines = [record.getMessage() for record in caplog.records if "bound this thread" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("OMP_PROC_BIND=true: ") and "1 of the 2 cores" in lines[0]
    assert "os.sched_setaffinity(0, cores)" in lines[0]


def test_a_bound_thread_is_not_named_where_all_cores_are_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    monkeypatch.setattr(torch, "get_num_threads", lambda: len(os.sched_getaffinity(0)))
    devices.warn_if_bound.cache_clear()
    with caplog.at_level(logging.WARNING, logger="sluice"):
        devices.warn_if_bound()
    devices.warn_if_bound.cache_clear()
    assert not caplog.records
