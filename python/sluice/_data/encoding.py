"""A tokenizer of a file, and the tokens of documents."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .failure import OTHER, Failure

PIECE_CHARACTERS = 1 << 16  # of a long document, encoded at a time
_BATCH_CHARACTERS = 1 << 20
_AROUND = 64  # characters on each side of a cut that show whether it changes tokens
_TRIES = 50
_LEAD = "\n"  # in front of a piece that goes on, where the tokenizer adds something in front of every text
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class TextEncoder:
    """A tokenizer. ``end``: the token behind each document, or None. ``unclear_cuts``: cuts that may have changed tokens.

    ``empty_documents``: those without text, which are left out.
    """

    def __init__(self, path: Path, end: str | None, with_end: bool) -> None:
        """``end``: None: the first of the usual ones that the tokenizer has. Raises Failure."""
        self._tokenizer, self.files = _load(path)
        self.sha256 = hashlib.sha256(b"".join(file.read_bytes() for file in self.files)).hexdigest()
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.vocabulary_size = max(vocabulary.values(), default=-1) + 1
        if self.vocabulary_size == 0:
            raise Failure(f"{path}: the tokenizer has no tokens")
        self.end_token: str | None = None
        if with_end:
            self.end_token = end or next((known for known in _ENDS if known in vocabulary), None)
            if self.end_token is None:
                raise Failure(f"{path}: no token ends a document ({', '.join(_ENDS)} are missing): name one with --eod, or --no-eod")
            if self.end_token not in vocabulary:
                raise Failure(f"{path}: the tokenizer has no token {self.end_token!r}")
        self.end = None if self.end_token is None else vocabulary[self.end_token]
        self._lead_ids = self.ids_of(_LEAD)
        self.unclear_cuts = self.empty_documents = 0

    def ids_of(self, text: str) -> list[int]:
        """The tokens of one text, without special tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def encode(self, documents: Iterable[Iterator[str]], done: Callable[[list[int], bool], None]) -> None:
        """Calls ``done`` with tokens in their order, and whether they end a document."""
        batch: list[tuple[str, str, bool]] = []
        characters = 0
        for document in documents:
            for lead, piece, is_last in self._pieces(document):
                batch.append((lead, piece, is_last))
                characters += len(piece)
                if characters >= _BATCH_CHARACTERS:
                    self._flush(batch, done)
                    characters = 0
        self._flush(batch, done)

    def _flush(self, batch: list[tuple[str, str, bool]], done: Callable[[list[int], bool], None]) -> None:
        texts = [lead + piece for lead, piece, _ in batch]
        for encoding, (lead, piece, is_last) in zip(self._tokenizer.encode_batch(texts, add_special_tokens=False), batch):
            ids = self._without_lead(encoding.ids, piece) if lead else encoding.ids
            if is_last and self.end is not None:
                ids = [*ids, self.end]
            done(ids, is_last)
        batch.clear()

    def _without_lead(self, ids: list[int], piece: str) -> list[int]:
        count = len(self._lead_ids)
        if ids[:count] == self._lead_ids:
            return ids[count:]
        self.unclear_cuts += 1  # its tokens follow from more than the characters around the cut
        return self.ids_of(piece)

    def _pieces(self, parts: Iterator[str]) -> Iterator[tuple[str, str, bool]]:
        """Pieces, each behind what is put in front of it, and whether it is the last one of a document."""
        text, lead, is_begun = "", "", False
        for part in parts:
            text += part
            while len(text) > PIECE_CHARACTERS + _AROUND:
                at, next_lead = self._cut(text)
                yield lead, text[:at], False
                text, lead, is_begun = text[at:], next_lead, True
        if text or is_begun:
            yield lead, text, True
        else:
            self.empty_documents += 1

    def _cut(self, text: str) -> tuple[int, str]:
        """Where a piece of the text ends: behind a line, at a place that changes no token of the characters around it.

        With what is put in front of the next piece for that, and its tokens left out.
        """
        at = PIECE_CHARACTERS
        for _ in range(_TRIES):
            at = text.rfind("\n", 0, at) + 1
            if at <= PIECE_CHARACTERS // 2:
                break
            before, behind = text[at - _AROUND : at], text[at : at + _AROUND]
            whole, first = self.ids_of(before + behind), self.ids_of(before)
            if whole == first + self.ids_of(behind):
                return at, ""
            rest = whole[len(first) :]
            if whole == first + rest and self.ids_of(_LEAD + behind) == self._lead_ids + rest:
                return at, _LEAD
            at -= 1
        self.unclear_cuts += 1
        return PIECE_CHARACTERS, ""


def _load(path: Path) -> tuple[Any, list[Path]]:
    try:
        import tokenizers
    except ImportError:
        raise Failure("sluice data needs the package tokenizers: pip install tokenizers", OTHER) from None
    pair = [path / "vocab.json", path / "merges.txt"]
    try:
        if path.is_dir() and not (path / "tokenizer.json").is_file() and all(file.is_file() for file in pair):
            return tokenizers.ByteLevelBPETokenizer(str(pair[0]), str(pair[1]))._tokenizer, pair
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise Failure(f"{file}: there is no tokenizer: a tokenizer.json, or a folder with one, or with vocab.json and merges.txt")
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
        tokenizer.no_truncation()  # Transformers saves the length and the padding of the last call, which would cut documents
        tokenizer.no_padding()
        return tokenizer, [file]
    except Failure:
        raise
    except Exception as error:  # the library raises Exception itself
        raise Failure(f"{path}: no tokenizer: {str(error).splitlines()[0]}") from None
