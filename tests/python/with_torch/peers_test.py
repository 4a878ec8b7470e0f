"""A rank that waits for others learns that one of them has ended, and is not ended by one that had done its part."""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from sluice._training import peers

BEAT = 0.05


class Store:
    """The store of the ranks, in this process: rank 1 is what a test writes."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}
        self.closed = False
        self.answers_after = 0.0
        self.readers = 0
        self.timeout = datetime.timedelta(seconds=4 * BEAT)

    def set(self, key: str, text: str) -> None:
        self.texts[key] = text.encode()

    def check(self, keys: list[str]) -> bool:
        if self.closed:
            raise RuntimeError("Broken pipe\nframe #0")
        return all(key in self.texts for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        if self.closed:
            raise RuntimeError("closed")
        self.readers += 1
        time.sleep(self.answers_after)
        self.readers -= 1
        return [self.texts[key] for key in keys]

    def write_peer(self, ended: bool, beat: int = 1, stuck: Sequence[tuple[int, int]] = (), outside: float = 0) -> None:
        text = {"beat": beat, "host": "there", "pid": 7, "doing": "step()", "ended": ended, "stuck": stuck, "outside": outside}
        self.set("peer1", json.dumps(text))


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.closed = True


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The ranks that have ended, for each time that this process would have ended."""
    found: list[list[int]] = []
    monkeypatch.setattr(peers, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(peers, "_ANSWER_SECONDS", 6 * BEAT)
    monkeypatch.setattr(peers.Peers, "_end_process", lambda self, silent, ended: found.append(ended))
    return found


def make(store: Store) -> peers.Peers:
    store.write_peer(ended=False)
    return peers.Peers(0, 2, store, limit=60)


def test_a_rank_that_ends_after_its_part_ends_nobody(store: Store, ends: list[list[int]]) -> None:
    group = make(store)
    with group.wait():
        time.sleep(8 * BEAT)
        store.write_peer(ended=True)
        time.sleep(3 * BEAT)  # the bytes that it sent arrive now
    time.sleep(10 * BEAT)
    assert not ends


# The interpreter ends after end(). A thread that returns from C++ code then aborts the process.
def test_no_thread_is_in_the_store_after_the_end(store: Store, ends: list[list[int]]) -> None:
    store.answers_after = 8 * BEAT
    group = make(store)
    deadline = time.monotonic() + 10
    while not store.readers and time.monotonic() < deadline:
        time.sleep(BEAT / 10)
    assert store.readers
    group.end()
    assert not store.readers
    assert json.loads(store.texts["peer0"])["ended"]
    time.sleep(4 * BEAT)
    assert not store.readers


def test_a_rank_that_waits_for_one_that_has_ended_ends(store: Store, ends: list[list[int]]) -> None:
    group = make(store)
    with group.wait():
        store.write_peer(ended=True)
        deadline = time.monotonic() + 10
        while not ends and time.monotonic() < deadline:
            time.sleep(BEAT)
    assert ends and ends[0] == [1]
    assert group.explain() == "rank 1 (host there, process 7) has ended its training: it was in step()"


# Calls are numbers of a group and of its collective.
@pytest.mark.parametrize(
    ("mine", "theirs", "inside", "is_found"),
    [
        ((0, 2), [(1, 3)], True, True),
        ((0, 2), [(1, 3), (0, 2)], True, False),  # it comes to the call that this one waits in
        ((0, 2), [], True, False),  # it computes
        ((0, 2), [(1, 3)], False, False),  # this one is in the code of its script
        (None, [(1, 3)], True, False),
    ],
)
def test_ranks_that_wait_for_each_other_are_found(
    mine: tuple[int, int] | None, theirs: list[tuple[int, int]], inside: bool, is_found: bool, store: Store, ends: list[list[int]]
) -> None:
    store.write_peer(ended=False)
    group = peers.Peers(0, 2, store, limit=8 * BEAT)
    with group.inside() if inside else contextlib.nullcontext(), group.wait(mine):
        for beat in range(40):
            store.write_peer(ended=False, beat=beat, stuck=theirs)
            time.sleep(BEAT)
            if group.difference:
                break
    assert ("wait for each other" in group.difference) == is_found
    assert bool(ends) == is_found


def test_a_rank_that_does_not_come_to_its_first_engine_is_named(store: Store) -> None:
    with pytest.raises(ConnectionError, match=r"rank 0 has waited .*these have not come to theirs: 1$"):
        peers.Peers(0, 2, store, limit=60)


def test_a_rank_that_comes_late_to_its_first_engine_is_named_and_waited_for(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    store.timeout = datetime.timedelta(seconds=60)
    comes = threading.Timer(12 * BEAT, store.write_peer, [False])
    comes.start()
    peers.Peers(0, 2, store, limit=4 * BEAT)
    comes.join()
    assert 1 <= len(caplog.messages) <= 3
    assert all("and waits for 60 s at most. These have not come to theirs: 1" in line for line in caplog.messages)


def test_a_store_that_is_gone_at_the_start_is_one_line(store: Store) -> None:
    store.closed = True
    with pytest.raises(ConnectionError, match=r"rank 0 cannot reach the store .* rank 0, or the agent of torchrun.* \(Broken pipe\)$"):
        peers.Peers(0, 2, store, limit=60)


@pytest.mark.parametrize(("outside", "is_named"), [(9 * BEAT, True), (4 * BEAT, False)])
def test_ranks_outside_the_engine_for_the_limit_are_named_seldom(
    outside: float, is_named: bool, store: Store, ends: list[list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    store.write_peer(ended=False)
    group = peers.Peers(0, 2, store, limit=8 * BEAT)
    for number in range(2):
        with group.inside(), group.wait((0, 2)):
            for beat in range(100 if is_named else 16):
                store.write_peer(ended=False, beat=beat, outside=outside)
                time.sleep(BEAT)
                if len(caplog.messages) > number:
                    break
    assert not ends
    assert len(caplog.messages) == 2 * is_named  # one in each wait: the next is due at twice the time
    assert all("rank 1 (host there, process 7) has been outside the engine for 0 s: it was in step()" in line for line in caplog.messages)
