"""sluice.comm's log of calls: which calls it counts, and the numbers that it shows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_models import engine_of, make

from sluice import comm
from sluice._training import calls


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[calls.CallLog]:
    """A log of its own for the test."""
    made = calls.CallLog()
    monkeypatch.setattr(calls, "calls", made)
    yield made


def make_calls(log: calls.CallLog) -> None:
    for operation, size in (("all_gather", 2048), ("all_gather", 2048), ("all_reduce", 100), ("barrier", 0)):
        with log.timed(operation, "the weights of unit h.1", size):
            pass


def test_the_summary_has_a_row_for_each_operation_and_size(log: calls.CallLog, capsys: pytest.CaptureFixture[str]) -> None:
    make_calls(log)
    assert comm.log_summary() is None
    assert "all_gather" not in capsys.readouterr().out  # not enabled
    comm.configure(enabled=True)
    make_calls(log)
    found = comm.log_summary(show_straggler=True, return_dict=True)
    assert found is not None
    assert sorted(found["summary"]) == ["all_gather", "all_reduce", "barrier"]
    row = found["summary"]["all_gather"][2048]
    assert (row["count"], row["msg_size_str"]) == (2, "2.0 KB")
    assert row["avg_latency_ms"] == pytest.approx(row["total_latency_ms"] / 2)
    assert found["straggler_analysis"]["all_gather"][2048]["total_straggler_ms"] == 0  # one rank
    assert found["metadata"]["world_size"] == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split("  ")[0] == "Comm. Op"
    assert "busbw_avg (Gbps)" in lines[0]
    assert lines[1] == "all_gather"


def test_calls_are_chosen_by_name_and_told_apart_with_debug(log: calls.CallLog) -> None:
    comm.configure({"comms_logger": {"enabled": True, "prof_all": False}}, prof_ops=["all_gather_into_tensor"], debug=True)
    make_calls(log)
    found = comm.log_summary(return_dict=True)
    assert found is not None
    assert list(found["summary"]) == ["all_gather of the weights of unit h.1"]


def test_a_call_that_raises_is_not_counted(log: calls.CallLog) -> None:
    comm.configure(enabled=True)
    with pytest.raises(RuntimeError), log.timed("barrier", "", 0):
        raise RuntimeError
    assert not log.rows()


def test_bandwidths_follow_the_operation() -> None:
    size, seconds = 10**9, 0.5  # 16 Gbps
    assert calls.bandwidths("all_gather", size, seconds, 4) == pytest.approx((16, 12))
    assert calls.bandwidths("reduce_scatter", size, seconds, 4) == pytest.approx((16, 12))
    assert calls.bandwidths("all_reduce", size, seconds, 4) == pytest.approx((32, 24))
    assert calls.bandwidths("broadcast", size, seconds, 4) == pytest.approx((16, 16))
    assert calls.bandwidths("barrier", 0, 0.0, 4) == (0, 0)


def test_an_engine_without_the_section_leaves_the_log_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls.calls, "enabled", False)  # as it is again after the test
    comm.configure(enabled=True)
    engine_of(make(blocks=1)).destroy()
    assert calls.calls.enabled


def test_a_size_of_any_number_of_bytes_has_a_text() -> None:
    assert [calls.size_text(size) for size in (0, 1536, 3 << 50, 1 << 60)] == ["0B", "1.5 KB", "3.0 PB", "1024.0 PB"]
