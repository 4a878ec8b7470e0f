"""Ranges of torch.profiler, the bar of a step, and the report as a table."""

from __future__ import annotations

import io

import pytest
import torch
from small_models import MEMORY_OF_ITS_OWN, config, engine_of, make, train

from sluice._training.shown.step_bar import StepBar
from sluice._training.watched_loop import WatchedLoop


def test_waits_are_ranges_of_the_profiler() -> None:
    engine = engine_of(make())
    train(engine, range(1))
    with torch.profiler.profile() as profile:
        train(engine, range(1, 2))
    names = {event.key for event in profile.key_averages()}
    wanted = {"gather blocks.1", "begin_gradients blocks.1", "send_gradients blocks.1", "finish_updates", "end_step"}
    assert {f"sluice.{name}" for name in wanted} <= names


def test_a_report_shows_itself_as_a_table() -> None:
    engine = engine_of(make(), config(sluice=MEMORY_OF_ITS_OWN))
    train(engine, range(4))
    report = engine.report()
    assert report["steps"] == 4
    assert report["d2h_bytes"] > 0
    lines = str(report).splitlines()
    assert lines[0] == "4 steps"
    assert next(line for line in lines if line.startswith("bytes device to host")).split()[-2:] == _bytes(report["d2h_bytes"] // 4)
    page = report._repr_html_()
    assert page.count("<tr>") == 10
    assert "<td>waited for weights</td>" in page


def _bytes(count: int) -> list[str]:
    return f"{count / 1024:.4g} KiB".split() if count < 1 << 20 else f"{count / (1 << 20):.4g} MiB".split()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_step_has_a_bar_on_a_terminal() -> None:
    now = [0.0]
    stream = Terminal()
    bar = StepBar(stream, lambda: now[0])
    for _ in range(2):
        for i in range(20):
            bar.enter(7, f"h.{i}")
            now[0] += 0.5
        bar.end()
    written = stream.getvalue()
    first, second = written.split("\r\x1b[K\r\x1b[K")[0], written
    assert "step 7: h.2, 1 s" in first
    assert "step 7 [############------------]  50% 4 s of 10 s, h.9" in second
    assert written.endswith("\r\x1b[K")


def test_short_steps_and_files_have_no_bar() -> None:
    now = [0.0]
    for stream, seconds in ((Terminal(), 0.01), (io.StringIO(), 0.5)):
        bar = StepBar(stream, lambda: now[0])
        for i in range(20):
            bar.enter(1, f"h.{i}")
            now[0] += seconds
        bar.end()
        assert stream.getvalue() == ""


def test_a_loop_without_its_attributes_has_no_others() -> None:
    with pytest.raises(AttributeError, match="_loop"):
        _ = WatchedLoop.__new__(WatchedLoop).step
