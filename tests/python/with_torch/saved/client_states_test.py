"""Whose client_state a rank gets: as with DeepSpeed its own at ZeRO-3, and rank 0's below."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks_test import run_text
from small_models import engine_of, make

from sluice import StorageError

SAVING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from small_models import config, engine_of, make
from sluice._training import objects
objects._PIECE_BYTES = 100  # so a packet is in several pieces
rank, place = int(os.environ["RANK"]), sys.argv[2]
loaded = []
for stage in (1, 3):
    engine = engine_of(make(blocks=1), config("device", zero_optimization={"stage": stage}))
    for state in ({"rank": rank, "rng": torch.full((4,), rank)}, {"epoch": 2}, None):
        engine.save_checkpoint(place, f"stage{stage}", client_state=state)
        found = engine.load_checkpoint(place, f"stage{stage}")[1]
        if "rng" in found:
            assert found.pop("rng").tolist() == [found["rank"]] * 4
        loaded.append(found)
    engine.save_checkpoint(place, f"last{stage}", client_state={"rank": rank})
    try:
        engine.save_checkpoint(place, "none", client_state={"f": (lambda: None) if rank == 1 else 1})
    except Exception as error:
        assert stage == 3 and ("rank 1 has failed: " in str(error)) == (rank == 0), error
    else:
        assert stage == 1
    engine.destroy()
open(os.path.join(place, str(rank)), "w").write(json.dumps(loaded))
"""


def test_a_rank_has_its_own_client_state_at_zero_3(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for rank, loaded in enumerate(run_text(SAVING, tmp_path)):
        assert loaded == [{"rank": 0}, {"epoch": 2}, {}, {"rank": rank}, {"epoch": 2}, {}]
    engine = engine_of(make(blocks=1))
    assert engine.load_checkpoint(tmp_path, "last3")[1] == {"rank": 0}
    assert "has a client_state of each of 2 ranks, and 1 load it: all of them have rank 0's" in caplog.text
    engine.destroy()


LARGE = """
import json, os, resource, sys
sys.path.insert(0, sys.argv[1])
import torch
from small_models import engine_of, make

from sluice import StorageError
rank = int(os.environ["RANK"])
engine = engine_of(make(blocks=1))
engine.save_checkpoint(sys.argv[2], "warm", client_state={"rank": rank})
state = {"replay": torch.full((2**24,), float(rank))}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
engine.save_checkpoint(sys.argv[2], "large", client_state=state)
copies = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**16
assert engine.load_checkpoint(sys.argv[2], "large")[1]["replay"].unique().tolist() == [rank]
engine.destroy()
open(os.path.join(sys.argv[2], str(rank)), "w").write(json.dumps(copies))
"""


def test_client_states_take_a_few_times_their_size(tmp_path: Path) -> None:
    first, second = run_text(LARGE, tmp_path)  # in the size of one
    assert second < 6
    assert first < 10


def test_states_of_one_step_whose_keys_fit_no_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a script that is begun again and again, and saves its first step in one folder."""
    monkeypatch.setattr("sluice._training.saved.client._LONGEST_NAME", 30)
    for saves in range(2):
        engine = engine_of(make(blocks=1))
        if saves == 0:
            engine.save_checkpoint(tmp_path)
        else:
            with pytest.raises(StorageError, match="has states of step 0 of other runs, 1 in number"):
                engine.save_checkpoint(tmp_path)
        engine.destroy()
