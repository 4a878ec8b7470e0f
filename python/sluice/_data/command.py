"""The command `sluice data`."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .documents import STDIN, documents, size_of, sources
from .encoding import TextEncoder
from .failure import OTHER, STORAGE, Failure
from .token_file import TokenFile, check_name, remove_dead_drafts

_EXAMPLES = """examples:
  sluice data tokenize book.txt --tokenizer gpt2/tokenizer.json --out book.bin
  sluice data tokenize corpus/ --tokenizer llama/ --out train.u32 --held-out 0.01 --held-out-file eval.u32
  zcat dump.jsonl.gz | sluice data tokenize - --tokenizer gpt2/ --out dump.bin
  sluice train --config ds.json --model config.json --data book.bin
"""
_MOST_THREADS = 1024
_BAR_WIDTH = 24
_SECONDS_BETWEEN_REDRAWS, _SECONDS_BETWEEN_LINES = 0.2, 10.0


def main(arguments: Sequence[str]) -> int:
    """Runs `sluice data ARGUMENTS`. Returns the exit code, which docs/cli.md explains."""
    _open_missing_streams()
    try:
        try:
            return _run(arguments)
        except Failure as failure:
            return _failed(arguments, str(failure), failure.exit_code)
        except KeyboardInterrupt:
            return _failed(arguments, "interrupted; no file was written", 130)
        except _Terminated:
            return _failed(arguments, "terminated; no file was written", 143)
        except MemoryError:
            return _failed(arguments, "out of memory: the longest line of the input has to fit", OTHER)
    except BrokenPipeError:
        _drop_output()
        return 141


def _open_missing_streams() -> None:
    """Streams that the caller closed are None in Python: what is written to them goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))


def _drop_output() -> None:
    """Drops buffered output, so that Python does not try to write it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(text: str = "") -> None:
    """Prints a line on standard output, or nothing and what waits there. Raises Failure where it cannot be written."""
    try:
        print(text, end="\n" if text else "", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        raise Failure(f"standard output: write: {error.strerror}", STORAGE) from None


def _run(arguments: Sequence[str]) -> int:
    try:
        asked = _parser().parse_args(arguments)
    except SystemExit as ended:  # --help
        _print()
        return int(ended.code or 0)
    signal.signal(signal.SIGTERM, _terminated)
    return _tokenize(asked)


def _failed(arguments: Sequence[str], message: str, exit_code: int) -> int:
    """Says why on standard error; with --json, which a usage error leaves unparsed, as an object on standard output too."""
    print(f"sluice data: {message}", file=sys.stderr)
    if "--json" in arguments:
        with contextlib.suppress(Failure):  # where it is standard output that fails
            _print(json.dumps({"error": message, "exit_code": exit_code}))
    return exit_code


class _Terminated(BaseException):
    """SIGTERM."""


def _terminated(*_: Any) -> None:
    raise _Terminated


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """For the moment in which files get their names: either none has its name, or all have."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers):
            signal.signal(number, handler)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise Failure(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sluice data", description="Makes the token files that `sluice train --data` takes.", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    tokenize = commands.add_parser(
        "tokenize", help="text files to tokens", description="Text files to one file of tokens, document after document.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = tokenize.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="a text file, JSONL (a document in each line), either with .gz; a folder; - is standard input")
    add("--tokenizer", type=Path, required=True, metavar="PATH", help="tokenizer.json, or a folder with it, or with vocab.json and merges.txt")
    add("--out", type=Path, required=True, metavar="FILE", help="tokens: .bin of 16 bits (vocabularies up to 65,536), .u32 of 32")
    add("--json-key", default="text", metavar="KEY", help="key of a JSONL line that has the text (default: text)")
    add("--eod", metavar="TOKEN", help="token behind each document (default: the tokenizer's token for the end of a text)")
    add("--no-eod", action="store_true", help="no token behind documents")
    add("--held-out", type=float, default=0.0, metavar="F", help="this share of the documents goes to --held-out-file")
    add("--held-out-file", type=Path, metavar="FILE", help="for `sluice train --eval-data`")
    add("--seed", type=int, default=0, metavar="N", help="which documents are held out (default: 0)")
    add("--threads", type=int, metavar="N", help="threads of the tokenizer (1 to 1,024; default: all cores)")
    add("--force", action="store_true", help="replace files that are there")
    add("--json", action="store_true", help="one JSON object on standard output at the end")
    return parser


def _check(asked: argparse.Namespace) -> None:
    if not 0 <= asked.held_out < 1:
        raise Failure(f"--held-out {asked.held_out}: a share from 0 up to 1")
    if (asked.held_out > 0) != (asked.held_out_file is not None):
        raise Failure("--held-out and --held-out-file go together")
    if asked.held_out_file is not None and asked.held_out_file.resolve() == asked.out.resolve():
        raise Failure("--out and --held-out-file are one file")
    if asked.eod is not None and asked.no_eod:
        raise Failure("--eod and --no-eod exclude each other")
    if asked.threads is not None and not 1 <= asked.threads <= _MOST_THREADS:
        raise Failure(f"--threads {asked.threads}: from 1 to {_MOST_THREADS:,}")


class _Progress:
    """A line of a terminal, or a line every ten seconds, on standard error."""

    def __init__(self, total_bytes: int | None) -> None:
        self.bytes = 0
        self._total, self._begin = total_bytes, time.monotonic()
        self._shown_at = self._begin
        self._on_terminal = sys.stderr.isatty()

    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def read(self, size_bytes: int) -> None:
        self.bytes += size_bytes

    def show(self, tokens: int) -> None:
        pause = _SECONDS_BETWEEN_REDRAWS if self._on_terminal else _SECONDS_BETWEEN_LINES
        if time.monotonic() - self._shown_at < pause:
            return
        self._shown_at = time.monotonic()
        line = self._line(tokens)
        sys.stderr.write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")
        sys.stderr.flush()

    def _line(self, tokens: int) -> str:
        seconds = max(self.seconds(), 1e-9)
        done = f"{self.bytes / (1 << 20):,.1f} MiB read, {tokens:,} tokens, {tokens / seconds:,.0f} tokens/s"
        if not self._total:
            return done
        share = min(self.bytes / self._total, 1.0)
        filled = int(share * _BAR_WIDTH)
        left = f", {seconds / share - seconds:,.0f} s left" if share > 0 else ""
        return f"[{'#' * filled}{'-' * (_BAR_WIDTH - filled)}] {share:4.0%} {done}{left}"

    def end(self) -> None:
        if self._on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _tokenize(asked: argparse.Namespace) -> int:
    _check(asked)
    if asked.threads is not None:
        os.environ["RAYON_NUM_THREADS"] = str(asked.threads)
    paths = sources(asked.inputs)
    encoder = TextEncoder(asked.tokenizer, asked.eod, not asked.no_eod)
    names = [path for path in (asked.out, asked.held_out_file) if path is not None]
    inputs = [*(path for path in paths if path != STDIN), *encoder.files]
    for name in names:
        check_name(name, encoder.vocabulary_size, asked.force, inputs)
        if (removed := remove_dead_drafts(name)) > 0:
            print(f"{name}: removed {removed} {'draft' if removed == 1 else 'drafts'} of killed runs beside it", file=sys.stderr)
    progress = _Progress(size_of(paths))
    with contextlib.ExitStack() as drafts:
        files = []
        for name in names:
            files.append(TokenFile(name))
            drafts.callback(files[-1].discard)
        _fill(asked, paths, encoder, files, progress)
        facts = {
            "tokenizer": str(asked.tokenizer),
            "tokenizer_sha256": encoder.sha256,
            "vocabulary": encoder.vocabulary_size,
            "end_of_document": encoder.end_token,
            "inputs": [str(path) for path in paths],
            "input_bytes": progress.bytes,
        }
        for file in files:
            file.finish(facts)
        with _signals_ignored():
            for file in files:
                file.publish()
    try:
        _report(asked, encoder, files, {**facts, "seconds": round(progress.seconds(), 3)})
    except KeyboardInterrupt:
        raise Failure("interrupted; the files are written", 130) from None
    except _Terminated:
        raise Failure("terminated; the files are written", 143) from None
    return 0


def _fill(
    asked: argparse.Namespace, paths: list[Path], encoder: TextEncoder, files: list[TokenFile], progress: _Progress
) -> None:
    document = 0

    def add(ids: list[int], is_last: bool) -> None:
        nonlocal document
        files[_place(asked, document)].add(ids, is_last)
        document += is_last
        progress.show(sum(file.tokens for file in files))

    def every() -> Iterator[Iterator[str]]:
        for path in paths:
            yield from documents(path, asked.json_key, progress.read)

    try:
        encoder.encode(every(), add)
    finally:
        progress.end()
    for place, file in enumerate(files):
        if file.tokens == 0:
            raise Failure(f"{file.path}: no token: {_why_empty(asked, document, encoder.empty_documents, place)}")


def _why_empty(asked: argparse.Namespace, documents: int, empty: int, place: int) -> str:
    """Why no token came to a place of `_place`. ``documents``: those with text."""
    here = sum(_place(asked, document) == place for document in range(documents))
    if documents == 0:
        return f"of {empty:,} documents none has text"
    if here > 0:
        return f"the tokenizer has none for the text of {here:,} documents"
    held_out = "all are" if place == 0 else "none is"
    return f"of {documents:,} documents {held_out} held out: another --held-out or --seed may choose others"


def _place(asked: argparse.Namespace, document: int) -> int:
    """0, or 1 for a document that is held out. It follows from the seed and the document's number."""
    if asked.held_out == 0:
        return 0
    digest = hashlib.blake2b(f"{asked.seed}:{document}".encode(), digest_size=8).digest()
    return int(int.from_bytes(digest, "little") < asked.held_out * 2**64)


def _report(asked: argparse.Namespace, encoder: TextEncoder, files: list[TokenFile], facts: dict[str, Any]) -> None:
    if asked.json:
        counts = {"empty_documents": encoder.empty_documents, "unclear_cuts": encoder.unclear_cuts}
        _print(json.dumps({**facts, **counts, "files": [file.facts() for file in files]}))
        return
    for file in files:
        size = file.path.stat().st_size
        _print(f"{file.path}: {file.tokens:,} tokens of {file.documents:,} documents, {size:,} bytes")
    end = "no token" if encoder.end_token is None else encoder.end_token
    _print(f"vocabulary {encoder.vocabulary_size:,}, {end} behind each document, {facts['seconds']:.1f} s")
    if encoder.empty_documents:
        _print(f"{encoder.empty_documents:,} documents without text were left out")
    if encoder.unclear_cuts:
        why = "no line near them ends where a cut changes none"
        _print(f"{encoder.unclear_cuts:,} cuts of long documents may have changed a token: {why}")
