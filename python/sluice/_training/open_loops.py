"""Loops that are open, and their directories. Each ends once: at close(), when nothing uses it any more, or when the script ends."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import multiprocessing.util
import os
import shutil
import sys
import weakref
from dataclasses import dataclass, field
from typing import Any

from .._errors import StorageError
from ..config import Config, Source, content_of
from . import ranks
from .engine_module import engine_module
from .shown import log_lines

log = logging.getLogger("sluice")

_open: dict[Any, bool] = {}  # loops of the extension, in the order in which every rank makes them: whether they have several ranks
_groups: dict[Any, ranks.Groups] = {}  # of open loops. A forked child keeps them: without their threads they cannot end
_SECTIONS = ("offload_optimizer", "offload_param")
_has_ended = False  # this process
_is_watched = False  # its end, by a finalizer of multiprocessing
_AFTER_QUEUES = -10  # the priority of that: lower ones come later, and queues of multiprocessing have -5


@dataclass
class Directories:
    """``nvme_path`` of a loop. Several loops of this process that have one as scratch memory have folders of their own in it.

    ``paths``: by key of the configuration. ``number``: 1 has the paths themselves, N their folders ``engine-N``.
    ``kept``: the directories in which it commits its steps.
    """

    paths: dict[str, list[str]] = field(default_factory=dict)
    number: int = 1
    kept: frozenset[str] = frozenset()
    made: list[str] = field(default_factory=list)  # folders that were not there before

    def real_paths(self) -> set[str]:
        """The directories of the configuration, links resolved."""
        return {os.path.realpath(path) for paths in self.paths.values() for path in paths}

    def settings(self) -> dict[str, list[str]]:
        """Values that replace the configuration's."""
        return {} if self.number == 1 else {key: [self._own(path) for path in paths] for key, paths in self.paths.items()}

    def _own(self, path: str) -> str:
        return os.path.join(path, f"engine-{self.number}")

    def make(self) -> None:
        """Makes the folders. Raises OSError."""
        for folder in {path for paths in self.settings().values() for path in paths}:
            if not os.path.isdir(folder):
                os.makedirs(folder, exist_ok=True)  # another rank may make it too
                self.made.append(folder)
            log.info("an engine has its scratch memory in %s, since nvme_path is that of another engine of this process", folder)

    def remove(self, has_begun: bool) -> None:
        """Removes the folders; those of other ranks, which end by themselves, stay. So do files that are not of the loop.

        ``has_begun``: the loop had its directories. Else another process may have them.
        """
        if not has_begun:
            for folder in self.made:
                with contextlib.suppress(OSError):  # it is not empty
                    os.rmdir(folder)
            return
        for folder in {path for paths in self.settings().values() for path in paths}:
            if ranks.world_size() > 1:
                shutil.rmtree(os.path.join(folder, f"rank{ranks.rank()}-of-{ranks.world_size()}"), ignore_errors=True)
                with contextlib.suppress(OSError):  # another rank has removed it
                    if os.listdir(folder) == ["lock"]:
                        shutil.rmtree(folder)
            elif folder in self.made:
                shutil.rmtree(folder, ignore_errors=True)


_directories: dict[Any, Directories] = {}  # of loops that have begun


def _paths_of(content: dict[str, Any]) -> dict[str, list[str]]:
    """Directories by section. Leaves what the configuration's parser would refuse to the parser."""
    found = {}
    zero = content.get("zero_optimization")
    for section in _SECTIONS:
        offload = zero.get(section) if isinstance(zero, dict) else None
        if isinstance(offload, dict) and offload.get("device") == "nvme":
            paths = offload.get("nvme_path")
            paths = [paths] if isinstance(paths, str) else paths
            if isinstance(paths, list) and paths and all(isinstance(path, str) and path for path in paths):
                found[f"zero_optimization.{section}.nvme_path"] = [os.path.abspath(path) for path in paths]  # the script may leave
    return found


def directories_of(source: Source | Config, commits: bool) -> Directories:
    """Those of a loop that is about to be made, beside the loops that are open. ``commits``: it keeps its steps on a drive.

    Engines that nothing uses any more end before: they are circles, which Python collects at some time. Raises ValueError where
    two loops would keep their steps in one directory, or one would where another one has its scratch memory.
    """
    if _open:
        gc.collect()
    try:
        content = content_of(source)
    except ValueError:
        return Directories()  # the parser of configurations says where
    made = Directories(_paths_of(content))
    own = made.real_paths()
    if commits:
        section = content.get("sluice")
        store = section.get("checkpoint_dir") if isinstance(section, dict) else None
        made.kept = frozenset({*own, *([os.path.realpath(store)] if isinstance(store, str) and store else [])})
    others = list(_directories.values())
    in_use = {path for other in others for path in (other.kept | (other.real_paths() if other.number == 1 else set()))}
    for path in sorted(made.kept & in_use):
        raise ValueError(
            f"{path} is the directory of another engine of this process, and resume=True or False keeps an engine's steps in a "
            "directory of its own: give this engine another nvme_path or checkpoint_dir, call destroy() of the other one before, or "
            "leave resume out, for scratch memory that engines share"
        )
    taken = {other.number for other in others if own & other.real_paths()}
    made.number = next(number for number in range(1, len(taken) + 2) if number not in taken)
    return made


def begin(loop: Any, directories: Directories) -> None:
    """Before the loop takes its directories; :func:`end` gives them back. Raises OSError."""
    _directories[loop] = directories
    directories.make()


def add(loop: Any, user: object, groups: ranks.Groups, *, commits: bool) -> None:
    """Ends the loop when its only ``user`` is gone. ``groups``: closed at its end. ``commits``: its steps are kept on a drive.

    Ranks collect garbage at different moments, and a commit is a collective. So a loop of several ranks that commits stays
    until close() or the exit, and one that does not ends without waiting for its last updates.
    """
    _watch_end()
    has_ranks = groups[0] is not None
    _open[loop], _groups[loop] = has_ranks, groups
    if not (has_ranks and commits):
        weakref.finalize(user, _end_unwatched, loop, finishes=not has_ranks).atexit = False


def is_open(loop: Any) -> bool:
    """Whether the loop is among those that end with the process."""
    return loop in _open


def finish_alone(loop: Any) -> None:
    """Commits the last step of a loop of one rank. Raises OSError and StorageError, after which it may be called again.

    Where there is no whole step to commit, :func:`end` raises the error. It commits for several ranks, whose others may have
    ended.
    """
    if _open[loop]:
        return
    try:
        _finish(loop)
    except (OSError, StorageError):
        if _is_whole(loop):
            raise
    except Exception as error:
        log.debug("the end of training will fail: %s", error)


def _is_whole(loop: Any) -> bool:
    """Whether the weights can be read, which they cannot after a load or an update that failed on the way."""
    try:
        loop.parameter(next(name for names, _ in loop.groups for name in names))
    except Exception as error:
        log.debug("the loop has no whole step: %s", error)
        return False
    return True


def _finish(loop: Any) -> None:
    ranks.set_doing("the end of its training")
    with ranks.inside():
        loop.finish()


def end(loop: Any, finishes: bool = True) -> None:
    """Gives memory and files back. ``finishes``: after it has committed the last step."""
    has_begun = loop in _open
    _open.pop(loop, None)
    try:
        if finishes:
            _finish(loop)
    finally:
        loop.close()
        ranks.close(_groups.pop(loop, (None, None)))
        directories = _directories.pop(loop, None)
        if directories is not None:
            directories.remove(has_begun)


def _end_unwatched(loop: Any, finishes: bool = True) -> bool:
    """As :func:`end`, where no caller is left to take an error: it is logged, and the script's exit code is not 0. Whether it went well."""
    try:
        if is_open(loop):
            end(loop, finishes)
    except Exception:
        log.exception("the end of training failed")
        engine_module().fail_at_exit()
        return False
    return True


@atexit.register
def _end_all(error: BaseException | None = None) -> bool:
    """A script that ends has its last step committed, and no thread of a loop outlives Python. Whether all went well.

    A commit is of all ranks. One that has failed, by ``error`` or another exception of the script, does not wait for the others,
    which may be in another call; nor does it close its groups. A second call does nothing.
    """
    global _has_ended
    if _has_ended:
        return True
    _has_ended, goes_well = True, True
    has_failed = error is not None or hasattr(sys, "last_value")
    if has_failed:
        _groups.clear()
    for loop, has_ranks in list(_open.items()):
        goes_well = _end_unwatched(loop, finishes=not (has_ranks and (has_failed or not goes_well))) and goes_well
    ranks.end(has_failed or not goes_well)
    log_lines.end()
    return goes_well


def _watch_end() -> None:
    """A process of multiprocessing that was forked ends without the functions of atexit, and with finalizers of its own."""
    global _is_watched
    if multiprocessing.parent_process() is not None and not _is_watched:
        _is_watched = True
        multiprocessing.util.Finalize(None, _end_process, exitpriority=_AFTER_QUEUES)


def _end_process() -> None:
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):  # of torch.multiprocessing too, after an exception
        error = error.__context__ if error.code else None
    if not _end_all(error):
        sys.exit(1)


# A forked child has no thread of its parent's engines, so it ends none of them.
def _forget() -> None:
    global _has_ended, _is_watched
    _has_ended = _is_watched = False
    _open.clear()
    _directories.clear()


os.register_at_fork(after_in_child=_forget)
