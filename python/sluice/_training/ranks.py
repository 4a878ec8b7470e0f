"""The ranks that share a model: processes of a launcher or of a script, joined by torch.distributed."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import itertools
import os
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from .. import _meeting
from .._errors import Error
from .._environment.launcher import number, take_variables
from . import objects
from .calls import calls
from .peers import WAY_OUT, Call, Peers, limit_seconds

_KINDS = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "barrier")
# These begin the labels of the extension's calls in which the ranks compare their rates: at the end of a step, and before it updates.
_OF_STEP = ("norm and loss", "whether the loss is finite")
_peers: Peers | None = None
_control: dist.ProcessGroup | None = None  # of values in host memory, which a script's own group may not send; with several ranks
_may_close = True  # that group, at the exit
_world: Callable[[], Any] = lambda: None  # the group of torch.distributed that both were made in
_numbers = itertools.count()
Result = TypeVar("Result")
_calls = itertools.count()  # of no RankGroup
Groups = tuple["RankGroup | None", "RankGroup | None"]


_living: weakref.WeakSet[RankGroup] = weakref.WeakSet()


class RankGroup:
    """Collectives of one thread over its own process group of the CPU. Called from the extension.

    Sums are taken in the order of ranks and in fp32 at least, so they do not depend on the transport. Before its bytes are
    sent, the ranks compare what each is about to do. A difference is a RuntimeError on all of them, which names the ranks.
    """

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo")
        self._world: Callable[[], Any] = weakref.ref(dist.group.WORLD)
        _living.add(self)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.label = ""  # of the call in progress, from the extension: "the weights of unit ..."
        self.step_values: Sequence[Mapping[str, float]] = ()  # of the parameter groups, in the step that ends
        self._count = 0
        self._is_waiting = False  # in a collective, or after one that has failed, which Gloo may not have ended
        self.number = next(_numbers)  # equal on all ranks: they make their engines in one order

    def all_gather(self, full: torch.Tensor) -> None:
        """``full``: bytes of all shards; this rank's are in place before the call."""
        with self._collective("all_gather", full):
            own = full.view(self.world_size, -1)[self.rank].clone()
            dist.all_gather_into_tensor(full, own, group=self._group)

    def reduce_scatter(self, full: torch.Tensor) -> None:
        """Sums the shards of this rank into its place in ``full``."""
        with self._collective("reduce_scatter", full):
            received = torch.empty_like(full)
            dist.all_to_all_single(received.view(torch.uint8), full.view(torch.uint8), group=self._group)
            parts = received.view(self.world_size, -1)
            total = parts[0].float()
            for part in parts[1:]:
                total += part
            full.view(self.world_size, -1)[self.rank].copy_(total)

    def all_reduce(self, values: torch.Tensor) -> None:
        """Sums ``values`` over the ranks, in rank order, in place. Host memory. Blocks."""
        with self._collective("all_reduce", values):
            parts = torch.empty(self.world_size, values.numel(), dtype=values.dtype, device="cpu")
            dist.all_gather_into_tensor(parts.view(-1), values.clone(), group=self._group)
            total = parts[0].clone()
            for part in parts[1:]:
                total += part
            values.copy_(total)

    def broadcast(self, data: torch.Tensor, root: int) -> None:
        """Copies ``data`` of rank ``root`` to every rank. Host memory. Blocks."""
        with self._collective("broadcast", data):
            dist.broadcast(data, root, group=self._group)

    def barrier(self) -> None:
        """Blocks until all ranks have called it."""
        with self._collective("barrier", None):
            dist.barrier(group=self._group)

    def close(self) -> None:
        """Gives the group's threads and connections back. After the last collective has ended well: it waits for others.

        A second call does nothing.
        """
        if self._group is None:
            return
        with contextlib.suppress(ValueError):  # the script has destroyed all groups before
            dist.destroy_process_group(self._group)
        self._group = None  # its threads end with the last reference

    def close_idle(self) -> None:
        """As :meth:`close`, unless the last collective has not ended well: closing might wait for other ranks."""
        if not self._is_waiting:
            self.close()

    @contextlib.contextmanager
    def _collective(self, kind: str, tensor: torch.Tensor | None) -> Iterator[None]:
        elements, size_bytes = (0, 0) if tensor is None else (tensor.numel(), tensor.nbytes)
        # Inside the wait: another rank may have ended for a difference that this one's watch is about to see.
        with waiting((self.number, self._count)), _explained(self._world), calls.timed(kind, self.label, size_bytes):
            self._is_waiting = True
            self._compare(kind, elements)
            yield
            self._is_waiting = False

    def _compare(self, kind: str, elements: int) -> None:
        self._count += 1
        values = self.step_values if self.label.startswith(_OF_STEP) else ()
        checksum = zlib.crc32(repr((self.label, values)).encode())
        own = torch.tensor([self._count, _KINDS.index(kind), elements, checksum], device="cpu")
        made = torch.empty(self.world_size, 4, dtype=torch.int64, device="cpu")
        dist.all_gather_into_tensor(made.view(-1), own, group=self._group)
        if bool((made == own).all()):
            return
        doing = objects.gather(("" if _peers is None else _peers.doing, self.label, values), self._group)
        shown = [
            f"rank {rank} is in {where} ({_KINDS[int(call[1])]} of {label or 'no unit'}, {int(call[2])} elements)"
            for rank, (call, (where, label, _)) in enumerate(zip(made, doing))
        ]
        found = f"the ranks do not make the same calls: {', '.join(shown)}. {WAY_OUT}"
        value = _different_value([values for _, _, values in doing])
        if value and all(label.startswith(_OF_STEP) for _, label, _ in doing):
            found = f"the ranks step with different values: {value}"
        if _peers is not None:
            _peers.difference = found  # the other thread of this rank may wait
        self._is_waiting = False
        raise RanksDiffer(found)


def _different_value(of_ranks: list[Sequence[Mapping[str, float]]]) -> str:
    """The first value of a parameter group that is another one on another rank; empty where there is none."""
    for rank, groups in enumerate(of_ranks):
        if len(groups) != len(of_ranks[0]):
            return f"rank 0 has {len(of_ranks[0])} parameter groups, and rank {rank} has {len(groups)}"
        for number, (first, group) in enumerate(zip(of_ranks[0], groups)):
            for name in sorted({*first, *group}):
                if first.get(name) != group.get(name):
                    return f"{name} of parameter group {number} is {first.get(name)} on rank 0 and {group.get(name)} on rank {rank}"
    return ""


class RanksDiffer(Error):
    """The ranks do different things. Another rank's text has this name."""


def _is_world(made_in: Callable[[], Any]) -> bool:
    """Whether torch.distributed is as it was then. A script may end it, and begin it again."""
    return dist.is_initialized() and made_in() is dist.group.WORLD


@contextlib.contextmanager
def _explained(made_in: Callable[[], Any]) -> Iterator[None]:
    """A context around the wait in a collective. Its error names the ranks that do not answer or have ended, if any.

    ``made_in``: the group of torch.distributed when the collective's own was made.
    """
    try:
        yield
    except ValueError:  # PyTorch's, of a group that is no more
        if _is_world(made_in):
            raise
        raise RuntimeError(
            "the script has ended torch.distributed (dist.destroy_process_group) before its engine, whose ranks cannot agree on the "
            "end of training any more: call engine.destroy() of each engine first"
        ) from None
    except RuntimeError as error:
        known = "" if _peers is None or isinstance(error, RanksDiffer) else _peers.explain()
        if not known:
            raise
        raise RuntimeError(f"{known} ({str(error).splitlines()[0]})") from None


def world_size() -> int:
    """Ranks of this run: those of torch.distributed, or of the environment that a launcher made."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    take_variables()
    return number("WORLD_SIZE", "1")


def rank() -> int:
    """This process's rank; 0 where no ranks were joined."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def join(backend: str = "gloo", timeout: datetime.timedelta | None = None) -> None:
    """Joins the ranks of the environment, where there are several and nobody has done so.

    ``timeout``: of the meeting and of the group's calls; None: a minute, and PyTorch's. Raises ValueError for an environment
    that cannot be, ConnectionError when the ranks are not together in time, or another program has the port.
    """
    ranks = world_size()
    if ranks == 1:
        return
    _follow_world()
    if dist.is_initialized():
        return
    _meeting.join(ranks, backend, timeout)


def _follow_world() -> None:
    """What was made in a torch.distributed that the script has ended is dropped: it keeps the port, and reaches no rank."""
    global _peers, _control, _numbers, _calls
    if (_peers is None and _control is None) or _is_world(_world):
        return
    if _peers is not None:
        _peers.end(is_replaced=True)
    _peers, _control = None, None
    _numbers, _calls = itertools.count(), itertools.count()  # the other ranks may be new processes


def groups() -> Groups:
    """For the thread that trains, and for the one that gathers; None for one rank."""
    global _peers, _world
    if world_size() == 1:
        return None, None
    join()
    _world = weakref.ref(dist.group.WORLD)
    if _peers is None:
        store = dist.distributed_c10d.PrefixStore("sluice", dist.distributed_c10d._get_default_store())
        _meeting.warn_of_restarts()
        _peers = Peers(dist.get_rank(), dist.get_world_size(), store, limit_seconds())
    set_doing("the start of an engine or a plan")
    _make_control()
    with _with_all():
        return RankGroup(), RankGroup()


def meet() -> bool:
    """Joins the ranks before there is an engine. False where no other rank is to be met. Every rank calls it."""
    if not dist.is_available() or world_size() == 1:
        return False
    join()
    _make_control()
    return True


def _make_control() -> None:
    """The group of values in host memory, once. Every rank calls it."""
    global _control, _world
    if _control is None:
        _world = weakref.ref(dist.group.WORLD)
        with _with_all():
            _control = dist.new_group(backend="gloo")


def end(has_failed: bool) -> None:
    """This rank trains no more. Called at exit, after the last call that waits for other ranks.

    A process that ends while a thread of Gloo drops the tensors of its last call aborts; a closed group has no thread. After
    a failure a call may not have ended, for which closing would wait.
    """
    global _may_close
    _may_close = _may_close and not has_failed
    if _peers is not None:
        _peers.end()
    for group in [] if has_failed else list(_living):
        with contextlib.suppress(Exception):  # the script has ended torch.distributed
            group.close()


@atexit.register  # here, and so after the end of the loops, which still use the group
def _close_control() -> None:
    global _control
    if _control is not None and _may_close and not hasattr(sys, "last_value"):
        with contextlib.suppress(Exception):  # the script has ended torch.distributed
            dist.destroy_process_group(_control)
        _control = None


def _keep_control() -> None:
    """A forked child has no thread of its parent's group, so it does not end it."""
    global _may_close
    _may_close = False


os.register_at_fork(after_in_child=_keep_control)


def close(made: Groups) -> None:
    """Closes what :func:`groups` made, except after a collective that has not ended well."""
    for group in made:
        if group is not None:
            group.close_idle()


def set_doing(what: str) -> None:
    """For the other ranks: what this one is doing."""
    if _peers is not None:
        _peers.doing = what


def waiting(call: Call) -> contextlib.AbstractContextManager[None]:
    """A context in which this thread waits for the other ranks, in a collective of a group."""
    return contextlib.nullcontext() if _peers is None else _peers.wait(call)


@contextlib.contextmanager
def _with_all() -> Iterator[None]:
    """A context of a collective of no RankGroup. All ranks make these in one order."""
    with inside(), _explained(_world), waiting((-1, next(_calls))):
        yield


def gather(what: str, own: Result) -> list[Result]:
    """``own`` of each rank. Every rank calls it for the same purpose. Raises :class:`sluice.Error` on all of them where one differs."""
    with _with_all():
        everyone = objects.gather((what, own, "" if _peers is None else _peers.doing), _control)
    if any(theirs != what for theirs, _, _ in everyone):
        shown = ", ".join(f"rank {other} is in {doing} ({theirs})" for other, (theirs, _, doing) in enumerate(everyone))
        raise Error(f"the ranks do not make the same calls: {shown}. {WAY_OUT}")
    return [one for _, one, _ in everyone]


def to_first(what: str, own: bytes) -> list[bytes]:
    """``own`` of each rank on rank 0, and an empty list on the others. Every rank calls it. Raises as :func:`gather`."""
    sizes = gather(what, len(own))
    with _with_all():
        return objects.to_first(own, sizes, _control)


def inside() -> contextlib.AbstractContextManager[None]:
    """A context in which the thread that trains is in a call of the loop."""
    return contextlib.nullcontext() if _peers is None else _peers.inside()


def calls_made() -> int:
    """Calls of the thread that trains which may wait for other ranks, so far."""
    return 0 if _peers is None else _peers.calls


def of_any(names: set[str]) -> set[str]:
    """The names that any rank gives. Every rank calls it."""
    if world_size() == 1:
        return names
    set_doing("the end of GatheredParameters")
    return set().union(*gather("names of what was written to", names))


def together(work: Callable[[], Result]) -> Result:
    """Does on each rank a part of the work that can fail. A failure is an error on all of them, and none goes on."""
    if world_size() == 1:
        return work()
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    failures = gather("part of a checkpoint", "" if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for other, failure in enumerate(failures):
        if failure:
            raise RuntimeError(f"rank {other} has failed: {failure}")
    return cast(Result, result)


def share(tensors: Iterable[torch.Tensor], root: int = 0) -> None:
    """Gives every rank the values of ``root``: of rank 0 at the start, as DeepSpeed does."""
    for tensor in tensors if world_size() > 1 else ():
        with _with_all():
            objects.share(tensor.data, root, _control)


def gathered(part: torch.Tensor) -> torch.Tensor:
    """The parts of all ranks, one after the other."""
    if world_size() == 1:
        return part
    whole = torch.empty(world_size() * part.numel(), dtype=part.dtype, device="cpu")
    with _with_all():
        dist.all_gather_into_tensor(whole, part, group=_control)
    return whole
