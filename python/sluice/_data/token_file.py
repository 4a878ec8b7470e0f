"""A token file that appears under its name when it and its facts are complete."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from .failure import Failure, of_system

MOST_IDS_OF_16_BITS = 1 << 16


_MOST_BYTES_OF_A_NAME_IN_A_DRAFT = 200  # a name has at most 255
_draft_number = itertools.count()
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # of a file system: no run removes drafts there


def facts_of(path: Path) -> Path:
    """The file beside a token file that says what it was made of."""
    return path.with_name(path.name + ".json")


def check_name(path: Path, vocabulary_size: int, overwrite: bool, inputs: Iterable[Path]) -> None:
    """Raises Failure for an ending that does not hold the vocabulary, and where a file or its facts would replace something."""
    if path.suffix not in (".bin", ".u32"):
        raise Failure(f"{path}: token files end in .bin (16-bit tokens) or .u32 (32-bit tokens)")
    if path.suffix == ".bin" and vocabulary_size > MOST_IDS_OF_16_BITS:
        raise Failure(f"{path}: {vocabulary_size:,} tokens need 32 bits: name it {path.with_suffix('.u32').name}")
    for file in (path, facts_of(path)):
        try:
            file.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise of_system(error, file) from None
        if file.is_dir():
            raise Failure(f"{file}: a folder, which no file replaces: choose another name than {path.name}")
        if any(file.exists() and file.samefile(source) for source in inputs):
            raise Failure(f"{file}: the file is an input too, which would be replaced: write to another one than {path.name}")
        if not overwrite:
            raise Failure(f"{file}: the file is there already: --force replaces it")


def remove_dead_drafts(path: Path) -> int:
    """Removes the drafts of ``path`` that no living process holds, where the folder can be listed. Returns how many."""
    pattern = re.compile(re.escape(_draft_prefix(path)) + r"\d+-\d+")
    try:
        names = {name.removesuffix(".json") for name in os.listdir(path.parent)}
    except OSError:
        return 0
    return sum(_remove_if_dead(path.with_name(name)) for name in names if pattern.fullmatch(name))


def _draft_prefix(path: Path) -> str:
    name = os.fsencode(path.name)[:_MOST_BYTES_OF_A_NAME_IN_A_DRAFT].decode("utf-8", "ignore")
    return f".{name}.draft-"


def _new_draft(path: Path) -> tuple[BinaryIO, int]:
    """A new draft, open, and a descriptor that holds it until it is closed: by a lock on the file of its facts.

    That file is made first, and is the last to go. Raises OSError.
    """
    while True:
        draft = path.with_name(f"{_draft_prefix(path)}{os.getpid()}-{next(_draft_number)}")
        facts = facts_of(draft)
        with contextlib.ExitStack() as undone:
            lock = os.open(facts, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            undone.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    facts.unlink(missing_ok=True)
                    raise
            with contextlib.suppress(FileNotFoundError):  # a run that began at this moment took it for a dead one
                if os.path.samestat(os.fstat(lock), facts.stat()):
                    undone.callback(facts.unlink)
                    file = draft.open("xb", buffering=1 << 20)
                    undone.pop_all()
                    return file, lock


def _remove_if_dead(draft: Path) -> bool:
    with contextlib.ExitStack() as held:
        try:
            lock = os.open(facts_of(draft), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            held.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass  # no process has a draft without this file
        except OSError:
            return False
        removed = False
        for file in (draft, facts_of(draft)):
            with contextlib.suppress(OSError):
                file.unlink()
                removed = True
        return removed


class TokenFile:
    """Little-endian tokens, uint16 for .bin and uint32 for .u32. Raises Failure where the drive fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = self.documents = 0
        self._code = "H" if path.suffix == ".bin" else "I"
        try:
            self._file, self._lock = _new_draft(path)
        except OSError as error:
            raise of_system(error, path) from None
        self._draft = Path(self._file.name)
        self._draft_of_facts = facts_of(self._draft)

    def add(self, ids: list[int], ends_document: bool) -> None:
        """Appends tokens."""
        values = array.array(self._code, ids)
        if sys.byteorder == "big":
            values.byteswap()
        try:
            self._file.write(values.tobytes())
        except OSError as error:
            raise of_system(error, self.path) from None
        self.tokens += len(ids)
        self.documents += ends_document

    def finish(self, facts: dict[str, Any]) -> None:
        """Brings the tokens, and PATH.json with the facts, to the drive, still without their names."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise of_system(error, self.path) from None
        try:
            with self._draft_of_facts.open("w") as file:
                file.write(json.dumps({**self.facts(), **facts}, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise of_system(error, facts_of(self.path)) from None

    def publish(self) -> None:
        """Gives both files their names. At no moment does a PATH.json lie beside tokens of other facts."""
        facts = facts_of(self.path)
        try:
            facts.unlink(missing_ok=True)
        except OSError as error:
            raise of_system(error, facts) from None
        for draft, file in ((self._draft, self.path), (self._draft_of_facts, facts)):
            try:
                draft.replace(file)
            except OSError as error:
                raise of_system(error, file) from None

    def facts(self) -> dict[str, Any]:
        """The file's path, its counts and its type, for the command's output."""
        kind = "uint16" if self._code == "H" else "uint32"
        return {"path": str(self.path), "tokens": self.tokens, "documents": self.documents, "dtype": kind}

    def discard(self) -> None:
        """Removes the drafts that have not got their names."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._draft.unlink(missing_ok=True)
        self._draft_of_facts.unlink(missing_ok=True)
        os.close(self._lock)
