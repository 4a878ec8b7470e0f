"""Saves while states that are there cannot be read: no file is removed that belongs to some of them."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from interrupted_saves_test import Marked, file_in, loaded, step_of
from small_models import engine_of, make

import sluice
from sluice._training.saved import client, files, states


class FailingOnce:
    """An `open` whose call of this number fails."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, path: str, *arguments: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return open(path, *arguments)


def test_a_manifest_that_cannot_be_read_for_a_moment_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 100):
        engine = engine_of(make(Marked))
        step_of(engine)
        folder = tmp_path / str(number)
        engine.save_checkpoint(folder, "last", {"saved": "old"})
        step_of(engine)
        failing = FailingOnce(number)
        with monkeypatch.context() as patch:
            patch.setattr(states, "open", failing, raising=False)
            try:
                engine.save_checkpoint(folder, "last", {"saved": "new"})
            except OSError as error:
                assert "manifest.json" in str(error)
                assert failing.left <= 0
            else:
                assert failing.left > 0, "a save that could not read a state has said nothing"
        engine.destroy()
        assert loaded(folder)[:2] in [(1, {"saved": "old"}), (2, {"saved": "new"})]
        if failing.left > 0:
            break
    assert 5 < number < 99


def test_a_damaged_state_keeps_its_file(tmp_path: Path) -> None:
    engine = engine_of(make(Marked))
    step_of(engine)
    engine.save_checkpoint(tmp_path, "last", {"saved": "old"})
    folder = tmp_path / "last"
    own = file_in(folder)
    manifest = folder / "step-00000001" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: len(whole) // 2])
    client.write(os.fspath(folder), 2, client.pack({}))
    manifest.write_bytes(whole)
    assert own.exists()
    assert loaded(tmp_path)[:2] == (1, {"saved": "old"})
    engine.save_checkpoint(tmp_path, "last", {"saved": "new"})
    assert [path.name[:15] for path in folder.glob("client-*.pt")] == ["client-00000001"]
    engine.destroy()


def test_states_that_are_gone_after_their_save_are_an_error(tmp_path: Path) -> None:
    path = client.write(os.fspath(tmp_path), 3, client.pack({}))
    with pytest.raises(sluice.StorageError, match=f"{tmp_path} has no whole states of step 3"):
        client.finish(os.fspath(tmp_path), 3, path)
    assert Path(path).exists()


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
    try:
        with pytest.raises(OSError, match=f"Too many open files: '{tmp_path}'"):
            client._files(os.fspath(tmp_path), "client-*.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_failing_close_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def failing(handle: int) -> None:
        close(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}/file'"):
        files.write_bytes(os.fspath(tmp_path / "file"), b"content")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
