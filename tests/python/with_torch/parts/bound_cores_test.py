"""A thread that OpenMP bound to one core is named, with the way out, once."""

from __future__ import annotations

import logging
import os

import pytest
import torch
from small_models import config, engine_of, make

from sluice._training import devices


def test_it_is_named_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
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


def test_it_is_not_named_where_all_cores_are_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    monkeypatch.setattr(torch, "get_num_threads", lambda: len(os.sched_getaffinity(0)))
    devices.warn_if_bound.cache_clear()
    with caplog.at_level(logging.WARNING, logger="sluice"):
        devices.warn_if_bound()
    devices.warn_if_bound.cache_clear()
    assert not caplog.records
