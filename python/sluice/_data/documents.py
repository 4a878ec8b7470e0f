"""Texts as documents, in bounded memory."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import json
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from .failure import Failure, of_system

BLOCK_BYTES = 1 << 20
ENDINGS = (".txt", ".md", ".jsonl", ".txt.gz", ".md.gz", ".jsonl.gz")
STDIN = Path("-")

Read = Callable[[int], None]  # is told how many bytes of an input were read

_KINDS = {dict: "an object", list: "an array", str: "a string", float: "a number", bool: "a truth value", type(None): "null"}


def sources(inputs: Iterable[str]) -> list[Path]:
    """Files, "-" for standard input, and for a folder the files below it with one of ENDINGS, by name. Raises Failure."""
    found: list[Path] = []
    for text in inputs:
        path = Path(text)
        with _reading(path):
            if text != "-" and not path.exists():
                raise Failure(f"{path}: there is no such file or folder")
            if path.is_block_device() or path.is_char_device():
                raise Failure(f"{path}: a device, not a file: - reads standard input")
            is_folder = path.is_dir()
        if not is_folder:
            found.append(path)
            continue
        inside = sorted(_below(path))
        if not inside:
            raise Failure(f"{path}: the folder has no file that ends in {', '.join(ENDINGS)}")
        found += inside
    return found


def _below(top: Path) -> Iterator[Path]:
    """Files with one of ENDINGS in a folder and in those within it, also linked ones."""
    waiting: list[tuple[Path, tuple[Path, ...]]] = [(top, ())]  # folders, each with those that it was found in
    while waiting:
        folder, above = waiting.pop()
        within = (*above, folder)
        with _reading(folder), os.scandir(folder) as entries:
            for entry in entries:
                path = Path(entry.path)
                with _reading(path):
                    if not _is_folder(entry, path, within):
                        if entry.name.endswith(ENDINGS):
                            yield path
                        continue
                waiting.append((path, within))


def _is_folder(entry: os.DirEntry[str], path: Path, within: tuple[Path, ...]) -> bool:
    """Whether it is a folder to look into. Raises Failure where it may have text, and none can be read."""
    if entry.is_dir():
        if entry.is_symlink() and any(path.samefile(outer) for outer in within):
            raise Failure(f"{path}: a link to a folder that it lies in: remove the link, or name the files")
        return True
    if entry.is_symlink() and not path.exists():
        raise Failure(f"{path}: a link to {os.readlink(path)}, which does not exist: restore that file, or remove the link")
    if entry.name.endswith(ENDINGS) and not entry.is_file():
        raise Failure(f"{path}: no regular file: remove it from the folder, or copy what it gives into a file")
    return False


def size_of(paths: Iterable[Path]) -> int | None:
    """Bytes of all files; None where one is a pipe."""
    sizes = [path.stat().st_size if path != STDIN and path.is_file() else None for path in paths]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def documents(path: Path, key: str, read: Read) -> Iterator[Iterator[str]]:
    """The documents of a file, each as parts of its text: the file, or each line of JSONL, whose text is ``key``."""
    with _reading(path), _open(path, read) as file:
        if path.name.removesuffix(".gz").endswith(".jsonl"):
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield iter([_text_of(path, number, line, key)])
        else:
            yield _decoded(path, file)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise Failure(f"{path}: no whole gzip file: {error}") from None
    except OSError as error:
        raise of_system(error, path) from None


class _Counted:
    """A binary file that tells how much of it was read. A regular one raises Failure where its size was another at first."""

    def __init__(self, path: Path, file: IO[bytes], read: Read) -> None:
        self._path, self._file, self._read = path, file, read
        info = os.fstat(file.fileno())
        has_size = stat.S_ISREG(info.st_mode) and info.st_size > 0  # some file systems know no sizes, and say 0
        self._size = info.st_size if has_size else None
        self._place = file.tell() if has_size else 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        return self._count(data, is_end=not data and size != 0)

    def readline(self) -> bytes:
        line = self._file.readline()
        return self._count(line, is_end=not line.endswith(b"\n"))

    def _count(self, data: bytes, is_end: bool) -> bytes:
        self._read(len(data))
        if self._size is None:
            return data
        self._place += len(data)
        if self._place > self._size:
            raise Failure(
                f"{self._path}: goes on behind byte {self._size:,}: another program has written to it while it was in use;"
                " wait until it is whole"
            )
        if is_end and self._place < self._size:
            end = min(self._place, os.fstat(self._file.fileno()).st_size)
            raise Failure(
                f"{self._path}: ends at byte {end:,}: another program has cut it short while it was in use; restore it"
            )
        return data

    def __iter__(self) -> Iterator[bytes]:
        while line := self.readline():
            yield line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _open(path: Path, read: Read) -> Any:
    counted = _Counted(path, sys.stdin.buffer if path == STDIN else path.open("rb"), read)
    return gzip.open(counted, "rb") if path.name.endswith(".gz") else counted  # type: ignore[arg-type]


def _text_of(path: Path, number: int, line: bytes, key: str) -> str:
    try:
        value = json.loads(line, parse_int=float)  # int() refuses long numbers
    except ValueError as error:
        raise Failure(f"{path}:{number}: no JSON: {error}") from None
    except RecursionError:
        raise Failure(f"{path}:{number}: JSON that is nested too deeply") from None
    if not isinstance(value, dict):
        raise Failure(f"{path}:{number}: {_KINDS[type(value)]}, not an object with the key {key!r}: remove the line")
    if key not in value:
        if not value:
            raise Failure(f"{path}:{number}: an object without keys: remove the line")
        has = ", ".join(map(repr, value))
        raise Failure(f"{path}:{number}: no text in {key!r} (the line has keys {has}): --json-key names the key")
    text = value[key]
    if not isinstance(text, str):
        what = f"the value of {key!r} is {_KINDS[type(text)]}, not a string"
        raise Failure(f"{path}:{number}: {what}: remove the line, or name another key with --json-key")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Failure(f"{path}:{number}: half of a surrogate pair, {error.object[error.start]!r}, is no character: remove the line") from None
    return text


def _decoded(path: Path, file: Any) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    while True:
        with _reading(path):
            block = file.read(BLOCK_BYTES)
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise Failure(f"{path}: byte {offset - waiting + error.start:,} is no UTF-8 text: convert the file first") from None
        offset += len(block)
        if text:
            yield text
        if not block:
            return
