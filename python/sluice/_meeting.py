"""The meeting of the ranks that the variables of a launcher describe."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import logging
import math
import os
import socket
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from ._environment.launcher import number

log = logging.getLogger("sluice")

_made: Callable[[], Any] = lambda: None  # the default group that join() made, while it is there
_MEETING = datetime.timedelta(minutes=1)
_LOOK_SECONDS = 0.01  # between looks of rank 0 at the store
_STORE_ENDED = ("Connection reset", "Broken pipe", "got 0 bytes")  # while a rank connected to it
_LOOK_OF_LIMIT_SECONDS = 0.1
_MOST_OF_A_LOOK = 1.0  # a process that stood still itself has seen nothing in that time
_LEAST_SECONDS = 1.0  # for a part of the meeting
_MORE_SECONDS = 5.0  # for calls with a limit of their own, which say more
_WAY_OUT = (
    "Name the network interface of each host by GLOO_SOCKET_IFNAME, as in GLOO_SOCKET_IFNAME=eth0, or give the host's name its address "
    "in the network in /etc/hosts"
)


def join(ranks: int, backend: str, timeout: datetime.timedelta | None) -> None:
    """Joins the ``ranks`` of the environment.

    ``timeout``: of the meeting and of the group's calls; None: a minute, and PyTorch's. Raises ValueError for an environment
    that cannot be, ConnectionError when the ranks are not together in time, or another program has the port. Where a call
    does not come back, the process ends some seconds later, with a line on standard error.
    """
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ValueError(f"WORLD_SIZE is {ranks}, and {' and '.join(missing)} {verb} not set: start the ranks with torchrun")
    own, port = number("RANK", ""), number("MASTER_PORT", "")
    if own >= ranks:
        raise ValueError(f"RANK={own} with WORLD_SIZE={ranks}: ranks are numbered from 0 to {ranks - 1}")
    where = f"{os.environ['MASTER_ADDR']}:{port}"
    limit = timeout or _MEETING
    meeting = _Meeting(own, ranks, where, limit.total_seconds())
    global _made
    with Limit(limit.total_seconds() + _MORE_SECONDS, lambda: meeting.failed("a call of the store, or of Gloo, has not come back")):
        meeting.join(backend, timeout)
    _made = weakref.ref(dist.group.WORLD)


def warn_of_restarts() -> None:
    """Warns where torchrun may start the ranks again, and they were not joined here."""
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if dist.get_rank() or restarts == "0" or _made() is dist.group.WORLD:
        return
    log.warning(
        "the script, or a library that it uses, has joined the ranks by torch.distributed itself. When torchrun starts them again "
        "(--max-restarts %s), PyTorch may look for ranks that have ended, and fail: call sluice.init_distributed() at the beginning of "
        "the script, before TrainingArguments or Accelerator (docs/ranks.md, Restarts by torchrun)",
        restarts,
    )


class _Meeting:
    """``where``: the address of the store."""

    def __init__(self, own: int, ranks: int, where: str, seconds: float) -> None:
        self._own, self._ranks, self._where, self._seconds = own, ranks, where, seconds
        self._end = time.monotonic() + seconds
        self._hint = ""

    def failed(self, why: str) -> str:
        """For an error or a line."""
        time_is_up = time.monotonic() > self._end - _LEAST_SECONDS
        within = f" within {self._seconds:g} s" if time_is_up else ""
        return f"rank {self._own} of {self._ranks} did not meet the others at {self._where}{within}: {why}{self._hint}"

    def join(self, backend: str, timeout: datetime.timedelta | None) -> None:
        """As the function. Raises ConnectionError."""
        try:
            store = self._store()
            meets = "gloo" in backend.lower()  # others connect in their first call
            if meets:
                self._compare_addresses(store)
            dist.init_process_group(
                backend, store=store, timeout=_left(self._end) if meets else timeout, rank=self._own, world_size=self._ranks
            )
            if meets:
                dist.distributed_c10d._set_pg_timeout(timeout or default_pg_timeout)
            store.set_timeout(timeout or default_pg_timeout)  # of what comes after the meeting: a rank may prepare data for long
        except (RuntimeError, OSError) as error:
            why = str(error).splitlines()[0]
            if "EADDRINUSE" in str(error):
                port = self._where.rpartition(":")[2]
                raise ConnectionError(
                    f"rank {self._own} of {self._ranks} cannot be the meeting place at {self._where}, since port {port} is in use: end what "
                    f"uses it, or set another MASTER_PORT on every rank ({why})"
                ) from None
            raise ConnectionError(self.failed(why)) from None

    def _store(self) -> dist.Store:
        """That of this start. Another rank may first reach one of an earlier start, which then ends."""
        while True:
            store = None
            try:
                store, _, _ = next(iter(rendezvous("env://", self._own, self._ranks, timeout=_left(self._end))))
                return _store_of_start(store, self._own, self._ranks, self._end)
            except (RuntimeError, OSError) as error:
                may_be_earlier = store is not None or any(words in str(error) for words in _STORE_ENDED)
                if self._own == 0 or not may_be_earlier or time.monotonic() > self._end - _LEAST_SECONDS:
                    raise
            time.sleep(_LOOK_SECONDS)

    def _compare_addresses(self, store: dist.Store) -> None:
        """Gloo would wait for minutes where a host's address is one that other hosts cannot reach. Raises OSError on each rank."""
        names = [f"place{rank}" for rank in range(self._ranks)]
        store.set(names[self._own], json.dumps(_place()))
        store.wait(names, _left(self._end))
        places = [json.loads(text) for text in store.multi_get(names)]
        networks = {place["network"] for place in places}
        if len(networks) == 1 or "" in networks:
            return
        for place in places:
            if place["address"] and ipaddress.ip_address(place["address"].partition("%")[0]).is_loopback:
                self._leave_together(store)
                raise OSError(
                    f"host {place['host']} has {place['address']} as the address of its own name, which no other host can reach, and Gloo "
                    f"would use it. {_WAY_OUT}"
                )
        mine = places[self._own]
        if mine["address"]:
            self._hint = f". Gloo has taken the address {mine['address']} for this host, {mine['host']}: can the others reach it? {_WAY_OUT}"

    def _leave_together(self, store: dist.Store) -> None:
        """The process of rank 0, which may have the store, ends last."""
        store.set(f"left{self._own}", "")
        if self._own == 0:
            with contextlib.suppress(RuntimeError):
                store.wait([f"left{rank}" for rank in range(self._ranks)], datetime.timedelta(seconds=_MORE_SECONDS))


def _place() -> dict[str, str]:
    """Where this rank is. ``address``: what Gloo tells the others, by the name of the host; empty where a variable decides it.

    Two ranks of one ``network`` reach each other by a loopback address. Empty where the system does not say it.
    """
    host, address = socket.gethostname(), ""
    if not os.environ.get("GLOO_SOCKET_IFNAME"):
        address = _address_of(host)
    network = ""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        network = f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"
    return {"host": host, "address": address, "network": network}


def _address_of(host: str) -> str:
    """The first one of this host that its name has."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return str(address[0])
    return "127.0.0.1"  # as Gloo does


class Limit:
    """A context. After ``seconds`` of a call inside, a thread ends the process: exit code 1 and the line on standard error. 0: never.

    A client of the store waits for ever for a host that stands still or is away, and Gloo for five times its own limit.
    """

    def __init__(self, seconds: float, line: Callable[[], str]) -> None:
        self._seconds, self._line = seconds, line
        self._left = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sluice-limit", daemon=True)

    def __enter__(self) -> Limit:
        if self._seconds > 0:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._seconds > 0:
            self._thread.join()

    def begin(self) -> None:
        """A call begins, which has the whole time."""
        self._left = self._seconds

    def end(self) -> None:
        """The call has come back, and none is under way."""
        self._left = math.inf

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._over.wait(_LOOK_OF_LIMIT_SECONDS):
            now = time.monotonic()
            self._left -= min(now - looked_at, _MOST_OF_A_LOOK)
            looked_at = now
            if self._left <= 0:
                sys.stderr.write(f"sluice: {self._line()}\n")
                sys.stderr.flush()
                os._exit(1)


def _store_of_start(store: dist.Store, own: int, ranks: int, end: float) -> dist.Store:
    """A part of the store that no earlier start of these ranks has written to.

    The agent of torchrun keeps its store when it starts the ranks again, and Gloo would take the addresses of the ranks that
    have ended from it. TORCHELASTIC_RESTART_COUNT tells starts apart on one host only: each agent counts its own failures. So
    rank 0 names the start, and gives the name to each rank under a word that this rank has made anew.
    """
    if own:
        word = uuid.uuid4().hex
        store.set(f"sluice_word{own}", word)
        try:
            store.wait([f"sluice_name_{word}"], _left(end))
        except RuntimeError as error:
            raise TimeoutError(f"no answer of rank 0 ({str(error).splitlines()[0]})") from None
        found = dist.PrefixStore(store.get(f"sluice_name_{word}").decode(), store)
        found.set(f"came{own}", "")
        return found
    name, away = uuid.uuid4().hex, [*range(1, ranks)]
    found, answered = dist.PrefixStore(name, store), set[str]()
    while away:
        for other in away:
            word = store.get(f"sluice_word{other}").decode() if store.check([f"sluice_word{other}"]) else ""
            if word and word not in answered:  # that of an earlier start comes first where there was one
                store.set(f"sluice_name_{word}", name)
                answered.add(word)
        away = [other for other in away if not found.check([f"came{other}"])]
        if away and time.monotonic() > end:
            raise TimeoutError(f"no answer of rank {', '.join(map(str, away))}")
        time.sleep(_LOOK_SECONDS)
    return found


def _left(end: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=max(end - time.monotonic(), _LEAST_SECONDS))
