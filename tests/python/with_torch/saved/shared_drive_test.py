"""Engines of one process with one nvme_path: actor and critic, two networks that train each other, a frozen reference."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked import run_two_ranks
from small_models import config, engine_of, make, train

import sluice

SCRIPT = Path(__file__).parent / "shared_drive_script.py"


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_engines_share_a_drive_as_scratch_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = engine_of(make(), config())
    expected = train(alone, range(3))
    alone.destroy()
    keys = config("nvme", tmp_path)
    actor = engine_of(make(), keys)
    with caplog.at_level("INFO", logger="sluice"):
        critic = engine_of(make(), keys)
    assert f"in {tmp_path / 'engine-2'}, since nvme_path is that of another engine" in caplog.text
    frozen = {key: value for key, value in keys.items() if key != "optimizer"}
    reference = engine_of(make(), frozen)
    assert {name.split("/")[0] for name in files_below(tmp_path) if "/" in name} == {"engine-2", "engine-3"}
    assert train(actor, range(3)) == train(critic, range(3)) == expected
    critic.destroy()
    assert not (tmp_path / "engine-2").exists()
    another = engine_of(make(), keys)
    assert (tmp_path / "engine-2").exists()
    for engine in (actor, another, reference):
        engine.destroy()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_path_is_known_by_its_other_names(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    os.symlink(tmp_path / "drive", tmp_path / "link")
    first = engine_of(make(blocks=1), config("nvme", tmp_path / "drive"))
    second = engine_of(make(blocks=1), config("nvme", tmp_path / "link"))
    assert (tmp_path / "drive" / "engine-2").exists()
    second.destroy()
    first.destroy()


def test_a_script_may_change_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A relative nvme_path is that of the start: folders of engines are made and removed there alone."""
    for name in ("one", "two"):
        (tmp_path / name / "drive").mkdir(parents=True)
    other = tmp_path / "two" / "drive" / "engine-2"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    monkeypatch.chdir(tmp_path / "one")
    first = engine_of(make(blocks=1), config("nvme", Path("drive")))
    with caplog.at_level("INFO", logger="sluice"):
        second = engine_of(make(blocks=1), config("nvme", Path("drive")))
    made = tmp_path / "one" / "drive" / "engine-2"
    assert made.is_dir() and f"scratch memory in {made}, " in caplog.text
    monkeypatch.chdir(tmp_path / "two")
    train(second, range(1))
    third = engine_of(make(blocks=1), config("nvme", Path("drive")))  # of another drive: no engine has it
    assert not (tmp_path / "two" / "drive" / "engine-3").exists()
    second.destroy()
    assert not made.exists() and (other / "notes.txt").read_text() == "mine"
    first.destroy()
    third.destroy()


def test_files_of_others_in_such_a_folder_stay(tmp_path: Path) -> None:
    (tmp_path / "engine-2").mkdir()
    (tmp_path / "engine-2" / "notes.txt").write_text("mine")
    first, second = (engine_of(make(blocks=1), config("nvme", tmp_path)) for _ in range(2))
    train(second, range(1))
    second.destroy()
    first.destroy()
    assert (tmp_path / "engine-2" / "notes.txt").read_text() == "mine"


def test_an_engine_that_fails_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine_of(make(blocks=1), config("nvme", tmp_path))
    with pytest.raises(sluice.DoesNotFit):
        engine_of(make(blocks=1), config("nvme", tmp_path, sluice={"device": "host", "host_bytes": "1MiB"}))
    assert not (tmp_path / "engine-2").exists()
    first.destroy()


@pytest.mark.parametrize("resume", [True, False])
def test_steps_are_kept_in_a_directory_of_ones_own(tmp_path: Path, resume: bool) -> None:
    keys = config("nvme", tmp_path)
    first = engine_of(make(blocks=1), keys)
    with pytest.raises(ValueError, match="is the directory of another engine of this process"):
        engine_of(make(blocks=1), keys, resume=resume)
    first.destroy()
    first = engine_of(make(blocks=1), keys, resume=resume)
    with pytest.raises(ValueError, match="is the directory of another engine of this process"):
        engine_of(make(blocks=1), keys, resume=resume)
    scratch = engine_of(make(blocks=1), keys)
    train(scratch, range(1))
    train(first, range(2))
    scratch.destroy()
    first.destroy()
    again = engine_of(make(blocks=1), keys, resume=True)
    assert again.global_steps == 2
    again.destroy()


def test_two_engines_do_not_write_their_checkpoints_into_one_directory(tmp_path: Path) -> None:
    keys = config("cpu", sluice={"device": "host", "checkpoint_dir": str(tmp_path)})
    first = engine_of(make(blocks=1), keys, resume=False)
    with pytest.raises(ValueError, match=r"destroy\(\) of the other one"):
        engine_of(make(blocks=1), keys, resume=False)
    first.destroy()


def test_an_engine_that_nothing_uses_gives_its_directory_back(tmp_path: Path) -> None:
    keys = config("nvme", tmp_path)

    def trained_for_a_while() -> None:
        train(engine_of(make(blocks=1), keys), range(1))

    trained_for_a_while()
    engine = engine_of(make(blocks=1), keys)
    assert not (tmp_path / "engine-2").exists()
    engine.destroy()


def test_two_ranks_have_folders_in_the_folder_of_their_engine(tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    run_two_ranks(SCRIPT, tmp_path)
