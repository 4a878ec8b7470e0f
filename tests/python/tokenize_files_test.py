"""`sluice data tokenize` replaces nothing unasked, leaves nothing half, and leaves no input out without a word."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import small_file_system
from sluice._data.documents import BLOCK_BYTES, documents, sources
from sluice._data.failure import Failure
from sluice._data.token_file import TokenFile, remove_dead_drafts
from tokenizing import run, tokens


@pytest.mark.parametrize("option", ["--out", "--held-out-file"])
def test_facts_of_another_file_are_not_replaced(option: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / "p.bin.json").write_text("precious")
    outs = {"--out": "out.bin", "--held-out-file": "eval.bin", option: "p.bin"}
    given = [text for pair in outs.items() for text in pair]
    result = run("a.txt", "--tokenizer", tokenizer, *given, "--held-out", 0.5, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (
        2, "sluice data: p.bin.json: the file is there already: --force replaces it\n"
    )
    assert (tmp_path / "p.bin.json").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "p.bin.json"]


def test_with_force_the_facts_are_replaced(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    for name in ("p.bin", "p.bin.json"):
        (tmp_path / name).write_text("old")
    result = run("a.txt", "--tokenizer", tokenizer, "--out", "p.bin", "--force", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "p.bin.json").read_text())["inputs"] == ["a.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "p.bin", "p.bin.json"]


@pytest.mark.parametrize("is_tokenizer", [False, True])
def test_an_input_is_not_replaced_by_facts(is_tokenizer: bool, tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / "q.bin.json"
    source.write_bytes((tokenizer / "tokenizer.json").read_bytes())
    (tmp_path / "a.txt").write_text("alpha\n")
    before = source.read_bytes()
    text, made = ("a.txt", source) if is_tokenizer else (source, tokenizer)
    result = run(text, "--tokenizer", made, "--out", "q.bin", "--force", cwd=tmp_path)
    assert result.returncode == 2
    assert "q.bin.json: the file is an input too" in result.stderr
    assert source.read_bytes() == before


@pytest.mark.parametrize("name", ["j.bin", "j.bin.json"])
def test_a_folder_in_the_place_of_a_file_is_named(name: str, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    (tmp_path / name).mkdir()
    result = run("a.txt", "--tokenizer", tokenizer, "--out", "j.bin", "--force", cwd=tmp_path)
    message = f"sluice data: {name}: a folder, which no file replaces: choose another name than j.bin\n"
    assert (result.returncode, result.stderr) == (2, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a.txt", name])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_drive_that_is_full_at_the_facts_leaves_what_was_there(is_there: bool, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    drive = tmp_path / "drive"
    drive.mkdir()
    pages = 1 + 2 * is_there  # one for the tokens, none for their facts
    with small_file_system(drive, pages * os.sysconf("SC_PAGE_SIZE")):
        old = {"x.bin": "old tokens", "x.bin.json": "old facts"} if is_there else {}
        for name, text in old.items():
            (drive / name).write_text(text)
        result = run("a.txt", "--tokenizer", tokenizer, "--out", "drive/x.bin", "--force", cwd=tmp_path)
        assert (result.returncode, result.stderr) == (4, "sluice data: drive/x.bin.json: No space left on device\n")
        assert {path.name: path.read_text() for path in drive.iterdir()} == old


@pytest.mark.parametrize("characters", [245, 250])
def test_a_name_may_be_as_long_as_its_facts_allow(characters: int, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    names = ["x" * (characters - 5) + end for end in ("1.bin", "2.bin")]
    split = ("--held-out", 0.5, "--held-out-file", names[1], "--seed", 3)
    (tmp_path / "b.txt").write_text("beta\n")
    result = run("a.txt", "b.txt", "--tokenizer", tokenizer, "--out", names[0], *split, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert tokens(tmp_path / names[0]) != tokens(tmp_path / names[1])
    too_long = run("a.txt", "--tokenizer", tokenizer, "--out", "x" * 247 + ".bin", cwd=tmp_path)
    assert (too_long.returncode, too_long.stderr.split(": ", 2)[2]) == (4, "File name too long\n")


def test_an_interruption_behind_the_files_says_that_they_are_written(tokenizer: Path, tmp_path: Path) -> None:
    source = tmp_path / ("x" * 200 + ".txt")
    source.write_text("alpha\n")
    options = ["--tokenizer", str(tokenizer), "--out", "a.bin", "--json"]
    command = [sys.executable, "-m", "sluice", "data", "tokenize", *[source.name] * 500, *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "a.bin.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)  # the line is longer than the pipe, so it waits for its reader
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (130, b"sluice data: interrupted; the files are written\n")
    assert (tmp_path / "a.bin").stat().st_size > 0


def drafts_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".x.bin.draft-"))


def test_the_next_run_removes_drafts_of_killed_runs_alone(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    options = ["--tokenizer", str(tokenizer), "--out", "x.bin", "--force"]
    command = [sys.executable, "-m", "sluice", "data", "tokenize", "-", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(drafts_in(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        held = drafts_in(tmp_path)
        for name in (".x.bin.draft-1-0", ".x.bin.draft-notes"):  # a draft that is all tokens, and no draft
            (tmp_path / name).write_text("old")
        result = run("a.txt", *options, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "x.bin: removed 1 draft of killed runs beside it\n")
        assert drafts_in(tmp_path) == sorted([*held, ".x.bin.draft-notes"])
    finally:
        process.kill()
        process.communicate()
    result = run("a.txt", *options, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "x.bin: removed 1 draft of killed runs beside it\n")
    assert drafts_in(tmp_path) == [".x.bin.draft-notes"]


def test_a_draft_that_is_taken_for_a_dead_one_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock
    removed: list[int] = []

    def late_lock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not removed:
            removed.append(remove_dead_drafts(tmp_path / "x.bin"))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late_lock)
    file = TokenFile(tmp_path / "x.bin")
    assert (removed, len(drafts_in(tmp_path))) == ([1], 2)
    file.discard()
    assert drafts_in(tmp_path) == []


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.EIO])
def test_a_file_is_written_where_there_are_no_locks_and_an_error_leaves_nothing(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(descriptor: int, operation: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    if error == errno.ENOLCK:  # NFS without a lock service
        TokenFile(tmp_path / "x.bin").discard()
    else:
        with pytest.raises(Failure, match="Input/output error"):
            TokenFile(tmp_path / "x.bin")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_listed_keeps_its_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(folder: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(os, "listdir", denied)
    assert remove_dead_drafts(tmp_path / "x.bin") == 0


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "in" / "inner").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_text("alpha\n")
    (tmp_path / "in" / "inner" / "b.txt").write_text("beta\n")
    return tmp_path / "in"


def test_linked_folders_and_files_are_inputs(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "c.txt").write_text("gamma\n")
    (corpus / "link").symlink_to("../real")
    (corpus / "z.txt").symlink_to("../real/c.txt")
    result = run("in", "--tokenizer", tokenizer, "--out", "x.bin", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["inputs"] == ["in/a.txt", "in/inner/b.txt", "in/link/c.txt", "in/z.txt"]


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("broken.txt", "/nowhere", "a link to /nowhere, which does not exist: restore that file, or remove the link"),
        ("shards", "/nowhere", "a link to /nowhere, which does not exist: restore that file, or remove the link"),
        ("around", "..", "a link to a folder that it lies in: remove the link, or name the files"),
        ("pipe.txt", None, "no regular file: remove it from the folder, or copy what it gives into a file"),
    ],
)
def test_what_gives_no_text_is_refused_by_its_name(
    name: str, target: str | None, message: str, corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    place = corpus / "inner" / name
    if target is None:
        os.mkfifo(place)
    else:
        place.symlink_to(target)
    result = run("in", "--tokenizer", tokenizer, "--out", "x.bin", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (2, f"sluice data: in/inner/{name}: {message}\n")
    assert not (tmp_path / "x.bin").exists()


def test_a_folder_that_may_not_be_read_is_named(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refusing(folder: Path) -> Any:
        if folder == corpus / "inner":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refusing)  # root may read everything
    with pytest.raises(Failure, match="inner: Permission denied") as failed:
        sources([str(corpus)])
    assert failed.value.exit_code == 4


def test_documents_without_text_are_counted(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n{"text": "alpha"}\n\n{"text": ""}\n')
    (tmp_path / "empty.txt").write_text("")
    options = ("--tokenizer", tokenizer, "--out", "x.bin", "--force")
    result = run("a.jsonl", "empty.txt", *options, "--json", cwd=tmp_path)
    facts = json.loads(result.stdout)
    assert (facts["empty_documents"], facts["files"][0]["documents"]) == (3, 1)
    result = run("a.jsonl", "empty.txt", *options, cwd=tmp_path)
    assert "\n3 documents without text were left out\n" in result.stdout
    result = run("empty.txt", "empty.txt", *options, cwd=tmp_path)
    assert result.stderr == "sluice data: x.bin: no token: of 2 documents none has text\n"


def test_a_gzip_file_with_an_extra_field_of_0_bytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    packed = bytearray(gzip.compress(b"alpha"))
    packed[3] |= 4  # FEXTRA (RFC 1952), whose length stands behind the 10 bytes of the header
    path.write_bytes(packed[:10] + bytes(2) + packed[10:])
    assert ["".join(document) for document in documents(path, "text", lambda _: None)] == ["alpha"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.txt.gz", "a.jsonl.gz"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (-5, "ends at byte {}: another program has cut it short while it was in use; restore it"),
        (5, "goes on behind byte {}: another program has written to it while it was in use; wait until it is whole"),
    ],
)
def test_an_input_that_another_program_changes_meanwhile_is_an_error(name: str, change: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    data = 2 * (json.dumps({"text": os.urandom(2 * BLOCK_BYTES).hex()}) + "\n").encode()
    path.write_bytes(gzip.compress(data, compresslevel=1) if name.endswith(".gz") else data)
    size = path.stat().st_size
    parts = (part for document in documents(path, "text", lambda _: None) for part in document)
    next(parts)
    os.truncate(path, size + change)
    with pytest.raises(Failure) as failed:
        list(parts)
    end = f"{min(size, size + change):,}"
    assert (str(failed.value), failed.value.exit_code) == (f"{path}: {message.format(end)}", 2)


def test_what_is_left_of_a_file_on_standard_input_is_whole(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\nbeta\n")
    with open(tmp_path / "a.txt", "rb") as file:
        os.lseek(file.fileno(), len("alpha\n"), os.SEEK_SET)
        result = run("-", "--tokenizer", tokenizer, "--out", "x.bin", "--json", cwd=tmp_path, stdin=file)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["input_bytes"] == len("beta\n")


def test_a_file_of_a_file_system_without_sizes_is_read() -> None:
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert "".join(next(documents(path, "text", lambda _: None))).startswith("Name:")
