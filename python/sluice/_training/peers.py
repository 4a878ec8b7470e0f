"""Names the rank that this one waits for, and ends the wait."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .._meeting import Limit

log = logging.getLogger("sluice")

BEAT_SECONDS = 1.0
_LIMIT_SECONDS = 45.0
_ANSWER_SECONDS = 3 * BEAT_SECONDS  # a rank that is alive has beaten by then
_LAST_BEAT_SECONDS = 10.0
_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.01, 0.2  # between looks for others at the start
_NEVER = float("inf")
WAY_OUT = (
    "Every rank makes the same calls, at every ZeRO stage: evaluation, GatheredParameters, module_state_dict(), save_checkpoint() "
    "and save_16bit_model() are for all ranks, and the script's own files for rank 0. A unit that one rank alone uses or skips, "
    "an operation without parameters at the end of the model's forward on one rank, in this step or the one before, and an "
    "exception in a pass or zero_grad() on one rank make such a difference too"
)
Call = tuple[int, int] | None  # number of a group, and of its collective


def limit_seconds() -> float:
    """SLUICE_RANK_TIMEOUT: seconds after which a rank that does not answer ends those that wait for it. 0: never."""
    text = os.environ.get("SLUICE_RANK_TIMEOUT", "")
    try:
        return float(text) if text else _LIMIT_SECONDS
    except ValueError:
        raise ValueError(f"SLUICE_RANK_TIMEOUT={text}: a number of seconds is expected") from None


@dataclasses.dataclass
class _Peer:
    text: bytes = b""
    seen_at: float = 0.0  # when its text last changed
    ended_at: float = float("inf")  # when this rank first read that it has ended

    def had_ended(self, before: float) -> bool:
        return self.ended_at < before

    def value(self, key: str) -> Any:
        return json.loads(self.text)[key] if self.text else "unknown"


class Peers:
    """Beats of all ranks over a store that they share. One object in a process.

    One thread writes this rank's beat and reads the others', since a store whose host stands still blocks it. A second one
    watches. The threads that train set ``doing`` and call :meth:`wait` around what waits for other ranks.
    """

    def __init__(self, rank: int, world_size: int, store: Any, limit: float) -> None:
        self.rank, self.world_size = rank, world_size
        self.doing = "the start"
        self.difference = ""  # a thread has found that the ranks do different things: which
        self._store, self._limit = store, limit
        self._peers = [_Peer(seen_at=time.monotonic()) for _ in range(world_size)]
        self._waits: dict[int, tuple[float, Call]] = {}  # by thread: since when, for what
        self._inside_since = _NEVER  # the call of the loop that the training thread is in
        self._outside_since = time.monotonic()  # of such calls, while there is none
        self.calls = 0  # those that have begun
        self._warned: tuple[float, float] = (_NEVER, limit)  # of a wait: its begin, and the seconds before its next warning
        self._beats = 0
        self._process = os.getpid()
        self._has_ended = False
        self._replaced = threading.Event()
        away = ": the process that has it, rank 0 or the agent of torchrun, stands still, or its host cannot be reached"
        with Limit(limit, lambda: f"{self._at_store(f'has waited {limit:.0f} s for')}{away}") as asked:
            self._write()
            self._meet(asked)
        self._end_of_beats = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="sluice-beats", daemon=True)
        self._beating.start()
        threading.Thread(target=self._watch, name="sluice-watch", daemon=True).start()

    def wait(self, call: Call = None) -> _Wait:
        """A context in which this thread waits for other ranks. ``call``: a collective that all ranks make; None: other."""
        return _Wait(self._waits, call)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """A call of the loop by the thread that trains."""
        self._inside_since = time.monotonic()
        self.calls += 1
        try:
            yield
        finally:
            self._outside_since = time.monotonic()
            self._inside_since = _NEVER

    def end(self, is_replaced: bool = False) -> None:
        """This rank trains no more. The others see it at their next look.

        ``is_replaced``: another object follows, so no thread stays.

        Waits for the thread that beats: an interpreter that ends while a thread is in the store aborts the process. A
        store whose host stands still keeps that thread; then the wait ends after some seconds.
        """
        if os.getpid() != self._process:
            return  # a forked child is no rank
        self._has_ended = True
        if is_replaced:
            self._replaced.set()
        self._end_of_beats.set()
        self._beating.join(_LAST_BEAT_SECONDS)
        if self._beating.is_alive():
            return
        try:
            self._write()
        except Exception:
            return  # the store's host has ended before

    def explain(self) -> str:
        """Which ranks do not answer or have ended, after a moment in which those that are alive answer. May be empty."""
        time.sleep(_ANSWER_SECONDS)
        now = time.monotonic()
        gone = [other for other in self._others() if now - self._peers[other].seen_at > _ANSWER_SECONDS]
        ended = [other for other in self._others() if self._peers[other].had_ended(now)]
        lines = [self._silence(other, now) for other in gone if other not in ended]
        return "; ".join([*lines, *(self._line(other, "has ended its training") for other in ended)])

    def _meet(self, asked: Limit) -> None:
        """Waits for the first beats of the others, as long as their store does. Raises ConnectionError with those that are away.

        Looks again and again, since a wait of the store would hear no Ctrl+C.
        """
        most, every = self._store.timeout.total_seconds(), self._limit or _LIMIT_SECONDS
        begin, warns_at, pause = time.monotonic(), every, _LOOK_SECONDS
        while not self._have_come(range(self.world_size), asked):
            seconds = time.monotonic() - begin
            if seconds >= min(most, warns_at):
                away = ", ".join(str(other) for other in self._others() if not self._have_come([other], asked))
                found = f"rank {self.rank} has waited {seconds:.0f} s for others at the start of its first engine"
                if seconds >= most:
                    raise ConnectionError(f"{found}, and these have not come to theirs: {away}")
                log.warning("%s, and waits for %.0f s at most. These have not come to theirs: %s", found, most, away)
                warns_at += every
            time.sleep(pause)
            pause = min(2 * pause, _MOST_LOOK_SECONDS)

    def _have_come(self, ranks: Iterable[int], asked: Limit) -> bool:
        """Whether these have written their first beats. Raises ConnectionError where the store is gone."""
        asked.begin()
        try:
            return bool(self._store.check([f"peer{other}" for other in ranks]))
        except RuntimeError as error:
            raise ConnectionError(
                f"{self._at_store('cannot reach')}, since the process that has it has ended: rank 0, or the agent of torchrun. Its output "
                f"says why ({str(error).splitlines()[0]})"
            ) from None
        finally:
            asked.end()

    def _at_store(self, what: str) -> str:
        return f"rank {self.rank} {what} the store of the ranks at the start of its first engine"

    def _others(self) -> list[int]:
        return [other for other in range(self.world_size) if other != self.rank]

    def _line(self, other: int, what: str) -> str:
        return f"{self._name(other)} {what}: it was in {self._peers[other].value('doing')}"

    def _silence(self, other: int, now: float) -> str:
        """Ranks answer once a second, so one that died may have come further than its last answer."""
        peer = self._peers[other]
        silence = f"has not answered for {now - peer.seen_at:.0f} s"
        return f"{self._name(other)} {silence}: its last answer was from {peer.value('doing')}"

    def _name(self, other: int) -> str:
        peer = self._peers[other]
        return f"rank {other} (host {peer.value('host')}, process {peer.value('pid')})"

    def _write(self) -> None:
        self._beats += 1
        text = {"beat": self._beats, "host": socket.gethostname(), "pid": os.getpid(), "doing": self.doing, "ended": self._has_ended}
        text["stuck"] = self._stuck()
        text["outside"] = time.monotonic() - self._outside_since if self._inside_since == _NEVER else 0.0
        self._store.set(f"peer{self.rank}", json.dumps(text))

    def _stuck(self) -> list[Call]:
        """The calls that this rank has waited in for the limit, while its training thread was in one call of the loop."""
        before = time.monotonic() - self._limit
        if self._inside_since > before:
            return []
        return [call for since, call in self._waits.copy().values() if call is not None and since <= before]

    def _wait_for_each_other(self) -> bool:
        """Whether every rank has waited in calls for the limit, and there is none that all of them wait in."""
        if self.world_size == 1 or not all(peer.text for peer in self._peers):
            return False
        stuck = [{(group, call) for group, call in peer.value("stuck")} for peer in self._peers]
        return all(stuck) and not set.intersection(*stuck)

    def _beat(self) -> None:
        keys = [f"peer{other}" for other in range(self.world_size)]
        while not self._has_ended:
            try:
                self._write()
                texts = self._store.multi_get(keys)
            except Exception:
                return  # the store's host has ended; a collective says so where one waits
            now = time.monotonic()
            for peer, text in zip(self._peers, texts):
                if text != peer.text:
                    peer.text, peer.seen_at = text, now
                    if peer.value("ended"):
                        peer.ended_at = min(peer.ended_at, now)
            self._end_of_beats.wait(BEAT_SECONDS)

    def _watch(self) -> None:
        while self._limit > 0 and not self._replaced.wait(BEAT_SECONDS):
            now = time.monotonic()
            since = min((since for since, _ in self._waits.copy().values()), default=now)
            if now - since < min(self._limit, _ANSWER_SECONDS):
                continue
            silent = [other for other in self._others() if now - self._peers[other].seen_at > self._limit]
            # A rank may end while what it sent is still on its way to this one, which then waits no longer.
            ended = [other for other in self._others() if self._peers[other].had_ended(now - _ANSWER_SECONDS)]
            if not (silent or ended or self.difference) and self._wait_for_each_other():
                self.difference = f"the ranks do not make the same calls, and wait for each other. {WAY_OUT}"
            if silent or ended or self.difference:
                self._end_process(silent, ended)
            self._warn_of_outside(since, now)

    def _warn_of_outside(self, since: float, now: float) -> None:
        """Names the ranks in code of their script for the limit, for which this one has waited as long. Again at each doubling.

        They may come yet: a script may write files on one rank for long. So nothing ends.
        """
        begin = max(since, self._inside_since)
        if begin != self._warned[0]:
            self._warned = begin, self._limit
        if now - begin < self._warned[1] or not self._stuck():
            return
        seconds = {other: self._peers[other].value("outside") for other in self._others() if self._peers[other].text}
        outside = [self._line(other, f"has been outside the engine for {of:.0f} s") for other, of in seconds.items() if of >= self._limit]
        if outside:
            self._warned = begin, 2 * (now - begin)
            found = f"rank {self.rank} has waited {now - begin:.0f} s in {self.doing}, and goes on waiting: {'; '.join(outside)}"
            log.warning("%s. %s", found, WAY_OUT)

    def _end_process(self, silent: list[int], ended: list[int]) -> None:
        now = time.monotonic()
        lines = [self.difference] if self.difference else []
        for other in range(self.world_size):
            if other == self.rank:
                lines.append(f"rank {other} waited for it: it was in {self.doing}; it ends")
            elif other in ended:
                lines.append(self._line(other, "has ended its training: every rank makes the same calls"))
            elif other in silent:
                lines.append(self._silence(other, now))
            else:
                lines.append(self._line(other, "answers"))
        sys.stderr.write("".join(f"sluice: {line}\n" for line in lines))
        sys.stderr.flush()
        os._exit(1)  # the thread that waits cannot be woken


class _Wait:
    def __init__(self, waits: dict[int, tuple[float, Call]], call: Call) -> None:
        self._waits, self._call = waits, call

    def __enter__(self) -> None:
        self._waits[threading.get_ident()] = time.monotonic(), self._call

    def __exit__(self, *error: object) -> None:
        self._waits.pop(threading.get_ident(), None)
