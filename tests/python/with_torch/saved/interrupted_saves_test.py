"""Saves that fail midway, files that are damaged, and loads that are refused before anything is loaded."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import small_models
import torch
from ranks_test import run_text
from small_models import config, engine_of, make, train
from torch import nn

import sluice
from sluice._training.saved import buffers, checkpoint, client, files


class Marked(nn.Linear):
    """A buffer that says which step it was saved at."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.register_buffer("mark", torch.zeros(()))


def step_of(engine: sluice.SluiceEngine) -> None:
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    engine.module.mark.fill_(engine.global_steps)


def assert_is_at(engine: sluice.SluiceEngine, step: int, state: Any) -> None:
    assert engine.global_steps == engine.loop.step == engine.module.mark == step
    assert state == {"saved": step}


def file_in(folder: Path, step: int = 1) -> Path:
    """The file beside the states of a step."""
    (path,) = folder.glob(f"client-{step:08d}-*.pt")
    return path


def loaded(folder: Path) -> tuple[int, dict[str, Any] | None, torch.Tensor]:
    engine = engine_of(make(Marked))
    state = engine.load_checkpoint(folder, "last")[1]
    assert state is not None
    weight = engine.module_state_dict()["weight"]
    assert engine.global_steps == engine.loop.step
    engine.destroy()
    return engine.global_steps, state, weight


class Killed(BaseException):
    pass


def killed(*_: Any) -> None:
    raise Killed


MOMENTS: dict[str, Callable[[sluice.SluiceEngine, pytest.MonkeyPatch], None]] = {
    "before the file": lambda engine, patch: patch.setattr(client, "write_bytes", killed),
    "before the states": lambda engine, patch: patch.setattr(engine.loop, "save_checkpoint", killed, raising=False),
    "after the states": lambda engine, patch: patch.setattr(client, "finish", killed),
}


# 0: the run goes back to step 1, and saves another state of step 2.
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_tag_that_is_saved_again_has_the_old_or_the_new_pair_at_any_moment(
    moment: str, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(make(Marked))
    step_of(engine)
    engine.save_checkpoint(tmp_path, "first")
    step_of(engine)
    engine.save_checkpoint(tmp_path, "last", {"saved": "old"})
    old = engine.module_state_dict()["weight"]
    if steps == 0:
        engine.load_checkpoint(tmp_path, "first")
        with sluice.zero.GatheredParameters(engine.module.weight, modifier_rank=0), torch.no_grad():
            engine.module.weight.fill_(5)
    step_of(engine)
    new = engine.module_state_dict()["weight"]
    with monkeypatch.context() as patch:
        MOMENTS[moment](engine, patch)
        with pytest.raises(Killed):
            engine.save_checkpoint(tmp_path, "last", {"saved": "new"})
    is_new = moment == "after the states"
    step, state, weight = loaded(tmp_path)
    assert state == {"saved": "new" if is_new else "old"}
    assert step == 2 + (steps if is_new else 0)
    assert torch.equal(weight, new if is_new else old)
    for _ in range(2):  # the second time with equal states
        engine.save_checkpoint(tmp_path, "last", {"saved": "at last"})
        assert loaded(tmp_path)[:2] == (2 + steps, {"saved": "at last"})
    engine.destroy()
    names = sorted(path.name for path in (tmp_path / "last").glob("*.pt"))
    assert [name[7:15] for name in names] == sorted(path.name[5:] for path in (tmp_path / "last").glob("step-*"))


def save_by_runs(folder: Path, runs: int) -> list[torch.Tensor]:
    """Each saves its step 1 at the tag "last". Returns their weights."""
    weights = []
    for run in range(runs):
        engine = engine_of(make(Marked))
        with sluice.zero.GatheredParameters(engine.module.weight, modifier_rank=0), torch.no_grad():
            engine.module.weight.fill_(run)
        step_of(engine)
        engine.save_checkpoint(folder, "last", {"saved": run})
        weights.append(engine.module_state_dict()["weight"])
        engine.destroy()
    return weights


def test_of_runs_that_save_one_tag_at_once_the_last_one_is_loaded(tmp_path: Path) -> None:
    weights = save_by_runs(tmp_path, 3)
    names = ["step-00000001", "step-00000001.2", "step-00000001.3"]
    for run in reversed(range(3)):
        step, state, weight = loaded(tmp_path)
        assert (step, state) == (1, {"saved": run})
        assert torch.equal(weight, weights[run])
        shutil.rmtree(tmp_path / "last" / names[run])


def test_weights_and_client_state_of_two_runs_are_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_by_runs(tmp_path, 2)
    engine = engine_of(make(Marked))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "newest", lambda states: states[0])  # as if the last one came while it is loaded
        with pytest.raises(sluice.StorageError, match=r"step-00000001\.2 were loaded, and the file beside them is of those that were in"):
            engine.load_checkpoint(tmp_path, "last")
        with pytest.raises(sluice.StorageError, match="was loaded in part only"):
            engine(torch.ones(2, 4))
    assert_is_at(engine, 1, engine.load_checkpoint(tmp_path, "last")[1])
    engine.destroy()


def test_a_full_disk_is_named_with_the_file_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    engine = engine_of(make(Marked))
    step_of(engine)
    engine.save_checkpoint(tmp_path, "last", {"saved": 1})
    step_of(engine)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100000, limits[1]))  # the disk is full
    try:
        with pytest.raises(OSError, match="File too large: .*client-00000002"):
            engine.save_checkpoint(tmp_path, "last", {"rng": torch.zeros(50000)})
        engine.module.register_buffer("large", torch.zeros(50000))
        with pytest.raises(OSError, match="File too large: .*weights.bin"):
            engine.save_16bit_model(tmp_path, "weights.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    engine.destroy()
    assert loaded(tmp_path)[:2] == (1, {"saved": 1})


def test_a_load_that_fails_on_the_way_is_not_committed_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "swap").mkdir()
    engine = engine_of(make(Marked), config("nvme", tmp_path / "swap"), resume=False)
    step_of(engine)
    engine.save_checkpoint(tmp_path, "first")
    step_of(engine)
    engine.module.register_buffer("later", torch.zeros(3))
    monkeypatch.setattr(buffers, "set_buffers", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        engine.load_checkpoint(tmp_path, "first", load_module_strict=False)
    with pytest.raises(sluice.StorageError, match="loaded in part only"):
        engine.destroy()
    monkeypatch.undo()
    again = engine_of(make(Marked), config("nvme", tmp_path / "swap"), resume=True)
    assert again.loop.step == 2
    again.destroy()


def test_the_folder_of_a_step_is_loaded_with_its_own_file(tmp_path: Path) -> None:
    engine = engine_of(make(Marked))
    for step in range(2):
        step_of(engine)
        engine.save_checkpoint(tmp_path, "all", {"saved": step})
    (older,) = (tmp_path / "all").glob("step-00000001*")
    place, state = engine.load_checkpoint(tmp_path / "all", older.name)
    assert (state, engine.global_steps) == ({"saved": 0}, 1)
    engine.destroy()


ENDING = """
import resource, sys
from small_models import config, engine_of, make, train
engine = engine_of(make(), config("nvme", sys.argv[1]), resume=False)
train(engine, range(2))
if sys.argv[2] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
print("trained")
sys.exit(int(sys.argv[3]))
"""


@pytest.mark.parametrize(("disk", "own", "expected"), [("free", 0, 0), ("full", 0, 1), ("full", 7, 7)])
def test_a_last_step_that_is_not_committed_at_the_exit_is_in_the_exit_code(disk: str, own: int, expected: int, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ENDING, str(tmp_path), disk, str(own)]
    place = Path(small_models.__file__).parent
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == expected, result.stderr
    assert result.stdout == "trained\n"
    assert ("the end of training failed" in result.stderr) == (disk == "full")


def test_a_checkpoint_of_a_version_before_is_loaded(tmp_path: Path) -> None:
    engine = engine_of(make(Marked))
    step_of(engine)
    engine.save_checkpoint(tmp_path, "last", {"saved": 1})
    folder = tmp_path / "last"
    file_in(folder).rename(folder / "client.pt")
    assert_is_at(engine, 1, engine.load_checkpoint(tmp_path, "last")[1])
    step_of(engine)
    shutil.copy(folder / "client.pt", tmp_path)
    engine.save_checkpoint(tmp_path, "last", {"saved": 2})
    assert_is_at(engine, 2, engine.load_checkpoint(tmp_path, "last")[1])
    file_in(folder, 2).unlink()
    shutil.copy(tmp_path / "client.pt", folder)
    with pytest.raises(sluice.StorageError, match=r"client\.pt is of step 1, and the states in .*step-00000002 are of step 2"):
        engine.load_checkpoint(tmp_path, "last")
    step_of(engine)
    assert engine.global_steps == 3
    engine.destroy()


def test_a_flipped_byte_is_an_error_or_changes_nothing(tmp_path: Path) -> None:
    engine = engine_of(make(Marked))
    engine.module.mark.fill_(3)
    engine.save_checkpoint(tmp_path, "last", {"saved": torch.arange(8)})
    path = file_in(tmp_path / "last", 0)
    whole = path.read_bytes()
    found = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            state = engine.load_checkpoint(tmp_path, "last")[1]
        except sluice.StorageError as error:
            assert str(path) in str(error)
            found += 1
        else:
            assert state is not None and torch.equal(state["saved"], torch.arange(8)) and engine.module.mark == 3
    assert found > 100
    at = whole.index(b"".join(number.to_bytes(8, "little") for number in range(8)))
    path.write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
    with pytest.raises(sluice.StorageError, match="the checksum of its part"):
        engine.load_checkpoint(tmp_path, "last")
    engine.destroy()


def test_a_scheduler_that_cannot_be_loaded_leaves_the_engine_as_it_was(tmp_path: Path) -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
    engine = engine_of(make(blocks=1), config(scheduler=warmup))
    train(engine, range(2))
    engine.save_checkpoint(tmp_path)
    engine.destroy()

    class Another:
        def step(self) -> None: ...
        def state_dict(self) -> dict[str, int]:
            return {"count": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.count = state["count"]

    other = sluice.initialize(model=make(blocks=1), config=config(), lr_scheduler=Another())[0]
    with pytest.raises(sluice.StorageError, match="another scheduler, which Another does not take"):
        other.load_checkpoint(tmp_path)
    assert other.loop.step == other.global_steps == 0
    train(other, range(1))
    other.load_checkpoint(tmp_path, load_lr_scheduler_states=False)
    assert other.global_steps == 2
    other.destroy()


def test_other_groups_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    engine = engine_of(make(blocks=1))
    train(engine, range(1))
    engine.save_checkpoint(tmp_path)
    engine.destroy()
    model = make(blocks=1)
    first, *others = model.parameters()
    groups = [{"params": [first]}, {"params": others}]
    other = sluice.initialize(model=model, config=config(), model_parameters=groups)[0]
    with pytest.raises(ValueError, match="has 1 parameter groups, and the optimizer has 2"):
        other.load_checkpoint(tmp_path)
    assert other.loop.step == other.global_steps == 0
    other.destroy()


def test_an_engine_that_was_loaded_in_part_takes_only_another_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(make(Marked))
    step_of(engine)
    engine.save_checkpoint(tmp_path, client_state={"saved": 1})
    step_of(engine)
    with monkeypatch.context() as patch:
        patch.setattr(engine.optimizer, "load_state_dict", killed)
        with pytest.raises(Killed):
            engine.load_checkpoint(tmp_path)
    for call in (lambda: engine(torch.ones(2, 4)), engine.step, lambda: engine.save_checkpoint(tmp_path)):
        with pytest.raises(sluice.StorageError, match="was loaded in part only"):
            call()
    assert_is_at(engine, 1, engine.load_checkpoint(tmp_path)[1])
    step_of(engine)
    engine.destroy()


def test_a_checkpoint_of_another_model_names_the_first_parameter(tmp_path: Path) -> None:
    class Other(Marked):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, 5))

    class More(Marked):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Parameter(torch.zeros(2))

    engine, more = engine_of(make(Marked)), engine_of(make(More))
    engine.save_checkpoint(tmp_path)
    more.save_checkpoint(tmp_path / "more")
    with pytest.raises(sluice.StorageError, match=r"parameter weight has shape \[1, 4\], and this model's has \[1, 5\]"):
        engine_of(make(Other)).load_checkpoint(tmp_path)
    with pytest.raises(sluice.StorageError, match=r"has no parameter more of shape \[2\], which this model trains"):
        more.load_checkpoint(tmp_path)
    with pytest.raises(sluice.StorageError, match=r"has parameter more of shape \[2\], which this model does not have\."):
        engine.load_checkpoint(tmp_path / "more")
    assert engine.loop.step == 0


def test_an_empty_latest_is_named(tmp_path: Path) -> None:
    engine = engine_of(make(Marked))
    (tmp_path / "latest").touch()
    with pytest.raises(sluice.StorageError, match=f"{tmp_path}/latest is empty"):
        engine.load_checkpoint(tmp_path)
    engine.destroy()


OTHER_TAGS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from small_models import batch, engine_of, loss_of, make
rank = int(os.environ["RANK"])
engine = engine_of(make(blocks=1))
def step():
    ids, targets = batch(rank)
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
step()
engine.save_checkpoint(sys.argv[2], tag="A")
step()
engine.save_checkpoint(sys.argv[2], tag="B")
for name in ("save", "load"):
    try:
        getattr(engine, name + "_checkpoint")(sys.argv[2], tag="AB"[rank])
    except ValueError as error:
        assert f"the tag of {name}_checkpoint is A on rank 0 and B on rank 1" in str(error), error
    else:
        raise AssertionError("ranks with two tags")
assert engine.global_steps == engine.loop.step == 2
engine.load_checkpoint(sys.argv[2], tag="A")
assert engine.global_steps == engine.loop.step == 1
step()
engine.destroy()
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write("null")
"""


def test_ranks_with_two_tags_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run_text(OTHER_TAGS, tmp_path)


def test_the_folder_of_latest_is_synced_after_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    replace, sync = os.replace, os.fsync

    def replaced(source: str, path: str) -> None:
        replace(source, path)
        done.append(f"renamed {path}")

    def synced(file: int) -> None:
        sync(file)
        done.append(f"synced {os.readlink(f'/proc/self/fd/{file}')}")

    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(os, "fsync", synced)
    files.set_latest(tmp_path, "t")
    assert done[-2:] == [f"renamed {tmp_path / 'latest'}", f"synced {tmp_path}"]
