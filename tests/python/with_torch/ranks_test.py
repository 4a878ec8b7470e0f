"""Ranks that torchrun starts train what one rank trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "rank_script.py"


def run(place: Path, ranks: int, tier: str = "cpu", load: bool = False, steps: int = 4, **asked: Any) -> list[Any]:
    """What each rank has written."""
    (place / "drive").mkdir(parents=True, exist_ok=True)
    spec = {"micro_batches": 2, "keys": {}, "save": -1, "frozen": False, "tied": True, **asked}
    arguments = json.dumps({**spec, "place": str(place), "tier": tier, "load": load, "steps": steps})
    launch = [sys.executable, "-W", "ignore"]
    if ranks > 1:
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0"]
        launch[-2:] = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*launch, str(SCRIPT), arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return [torch.load(place / f"rank{rank}.pt") for rank in range(ranks)]


def assert_equal(mine: Any, theirs: Any) -> None:
    assert mine[0] == theirs[0]
    assert all(torch.equal(mine[1][name], theirs[1][name]) for name in theirs[1])
    assert all(torch.equal(a, b) for a, b in zip(mine[2:4], theirs[2:4], strict=True))


# Two micro-batches of one rank are added one after the other, as those of two ranks are. A tied weight has two gradients
# in each micro-batch, which one rank adds in another order; so has the norm, which clips.
@pytest.mark.parametrize(("tied", "clip", "frozen"), [(False, 0.0, False), (False, 0.0, True), (True, 0.0, False), (False, 1.0, True)])
def test_two_ranks_train_as_one(tied: bool, clip: float, frozen: bool, tmp_path: Path) -> None:
    asked = {"keys": {"gradient_clipping": clip}, "frozen": frozen, "tied": tied}
    (one,) = run(tmp_path / "one", 1, **asked)
    two = run(tmp_path / "two", 2, **asked)
    assert_equal(two[0], two[1])
    bits = not tied and not clip
    for (loss, norm), (other_loss, other_norm) in zip(two[0][0], one[0], strict=True):
        assert loss == pytest.approx(other_loss, rel=1e-15 if bits else 1e-6)
        assert norm == pytest.approx(other_norm, rel=1e-6)
    for name, value in one[1].items():
        mine = two[0][1][name]
        assert torch.equal(mine, value) if bits else torch.allclose(mine, value, rtol=1e-4, atol=1e-6)
    assert torch.equal(two[0][1]["norm.bias"], torch.full((64,), 5.0))


@pytest.mark.parametrize(("precision", "ranks"), [("fp32", 2), ("bf16", 4)])
def test_tiers_have_equal_bits(precision: str, ranks: int, tmp_path: Path) -> None:
    keys = {"gradient_clipping": 1.0, **({"bf16": {"enabled": True}} if precision == "bf16" else {})}
    courses = [run(tmp_path / tier, ranks, tier, keys=keys, micro_batches=8, steps=2) for tier in ("device", "cpu", "nvme")]
    for course in courses:
        for mine in course:
            assert_equal(mine, courses[0][0])


def test_gradients_are_means_over_the_ranks(tmp_path: Path) -> None:
    (one,) = run(tmp_path / "one", 1, micro_batches=1, steps=1)
    two = run(tmp_path / "two", 2, micro_batches=2, steps=1)
    assert torch.equal(two[0][4], two[1][4])
    assert not torch.equal(two[0][4], one[4])  # another batch on rank 1


def test_a_checkpoint_of_two_ranks_continues(tmp_path: Path) -> None:
    whole = run(tmp_path, 2, "nvme", steps=6, save=2)
    resumed = run(tmp_path, 2, "nvme", load=True, steps=6)
    assert resumed[0][0] == whole[0][0][3:]
    assert (tmp_path / "saved" / "global_step3" / "rank1").is_dir()
