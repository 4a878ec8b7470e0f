"""A token file that appears under its name when it is complete."""

from __future__ import annotations

import array
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from .failure import Failure, of_system

MOST_IDS_OF_16_BITS = 1 << 16


def check_name(path: Path, vocabulary_size: int, overwrite: bool) -> None:
    """Raises Failure for an ending that does not hold the vocabulary, and for a file that is there."""
    if path.suffix not in (".bin", ".u32"):
        raise Failure(f"{path}: token files end in .bin (16-bit tokens) or .u32 (32-bit tokens)")
    if path.suffix == ".bin" and vocabulary_size > MOST_IDS_OF_16_BITS:
        raise Failure(f"{path}: {vocabulary_size:,} tokens need 32 bits: name it {path.with_suffix('.u32').name}")
    if path.exists() and not overwrite:
        raise Failure(f"{path}: the file is there already: --force replaces it")


class TokenFile:
    """Little-endian tokens, uint16 for .bin and uint32 for .u32. Raises Failure where the drive fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = self.documents = 0
        self._code = "H" if path.suffix == ".bin" else "I"
        self._draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
        try:
            self._file = self._draft.open("xb", buffering=1 << 20)
        except OSError as error:
            raise of_system(error, path) from None

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

    def commit(self, facts: dict[str, Any]) -> None:
        """Gives the file its name, and writes PATH.json with the facts."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._draft.replace(self.path)
            self.path.with_name(self.path.name + ".json").write_text(json.dumps({**self.facts(), **facts}, indent=2) + "\n")
        except OSError as error:
            raise of_system(error, self.path) from None

    def facts(self) -> dict[str, Any]:
        """The file's path, its counts and its type, for the command's output."""
        kind = "uint16" if self._code == "H" else "uint32"
        return {"path": str(self.path), "tokens": self.tokens, "documents": self.documents, "dtype": kind}

    def discard(self) -> None:
        """Removes the draft, where it has not got its name."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._draft.unlink(missing_ok=True)
