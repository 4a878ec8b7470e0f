"""The measure of the tests that a call releases the GIL."""

from __future__ import annotations

from conftest import free_rates_kept


def test_a_call_that_keeps_the_gil_is_seen() -> None:
    text = bytes(300_000_000)
    assert free_rates_kept(lambda: text.count(b"x"), 0.05)[0] < 0.3
