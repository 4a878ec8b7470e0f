"""Which states of a folder are the newest: as in engine/models/src/states/checkpoints.cpp."""

from __future__ import annotations

import json
from pathlib import Path

import small_models

from sluice._training.saved.states import State, newest, read

SECOND = 10**9


def state(line: str, order: int, saved_at: int, number: int = 1) -> State:
    return State(f"step-{order:08d}", order, line, order, saved_at, number, "", {})


def test_the_line_that_was_saved_last_counts_and_in_it_the_last_place() -> None:
    went_back = state("a", 7, 3 * SECOND)
    assert newest([state("a", 6, 2 * SECOND), went_back, state("b", 9, 3 * SECOND - 1)]) == went_back
    assert newest([state("b", 9, SECOND), state("a", 7, 3 * SECOND), state("a", 6, 4 * SECOND)]) == went_back
    assert newest([]) is None


def test_at_one_time_the_larger_number_was_saved_last() -> None:
    by_name = [state("a", 4, SECOND), state("c", 3, SECOND, 10), state("b", 5, SECOND, 2)]
    assert newest(by_name) == by_name[1]
    of_line = [state("a", 4, SECOND, number) for number in (1, 10, 2)]
    assert newest(of_line) == of_line[1]


def test_older_manifests_have_the_second_alone(tmp_path: Path) -> None:
    engine = small_models.engine_of(small_models.make(blocks=1))
    engine.save_checkpoint(tmp_path, "tag")
    engine.destroy()
    folder = tmp_path / "tag" / "step-00000000"
    before = read(str(folder))
    assert before is not None and before.number == 1
    assert before.saved_at % SECOND != 0
    manifest = folder / "manifest.json"
    content, checksum = manifest.read_bytes().rsplit(b"\n", 2)[:2]
    outer = json.loads(content)
    inner = json.loads(outer["metadata"])
    del inner["saved_at_ns"]
    manifest.write_bytes(b"\n".join([json.dumps({**outer, "metadata": json.dumps(inner)}).encode(), checksum, b""]))
    folder.rename(folder.with_name("step-00000000.10"))
    after = read(str(folder.with_name("step-00000000.10")))
    assert after is not None and after.number == 10
    assert before.saved_at <= after.saved_at < (before.saved_at // SECOND + 1) * SECOND
