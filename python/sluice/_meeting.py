"""The meeting of the ranks that the variables of a launcher describe."""

from __future__ import annotations

import datetime
import os
import time
import uuid

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from ._launcher import number

_MEETING = datetime.timedelta(minutes=1)
_LOOK_SECONDS = 0.01  # between looks of rank 0 at the store
_LEAST_SECONDS = 1.0  # for a part of the meeting


def join(ranks: int, backend: str, timeout: datetime.timedelta | None) -> None:
    """Joins the ``ranks`` of the environment.

    ``timeout``: of the meeting and of the group's calls; None: a minute, and PyTorch's. Raises ValueError for an environment
    that cannot be, ConnectionError when the ranks are not together in time, or another program has the port.
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
    end = time.monotonic() + limit.total_seconds()
    try:
        store, _, _ = next(iter(rendezvous("env://", own, ranks, timeout=limit)))
        store = _store_of_start(store, own, ranks, end)
        meets = "gloo" in backend.lower()  # others connect in their first call
        dist.init_process_group(backend, store=store, timeout=_left(end) if meets else timeout, rank=own, world_size=ranks)
        if meets:
            dist.distributed_c10d._set_pg_timeout(timeout or default_pg_timeout)
        store.set_timeout(timeout or default_pg_timeout)  # of what comes after the meeting: a rank may prepare data for long
    except (RuntimeError, OSError) as error:
        why = str(error).splitlines()[0]
        if "EADDRINUSE" in str(error):
            raise ConnectionError(
                f"rank {own} of {ranks} cannot be the meeting place at {where}, since port {port} is in use: end what uses it, or "
                f"set another MASTER_PORT on every rank ({why})"
            ) from None
        raise ConnectionError(
            f"rank {own} of {ranks} did not meet the others at {where} within {limit.total_seconds():g} s: {why}"
        ) from None


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
