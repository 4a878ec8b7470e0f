"""Ranks that update in backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks_test import assert_equal, run, run_text


# The ranks agree on each unit's finite check before its update.
@pytest.mark.parametrize("micro_batches", [2, 4])
@pytest.mark.parametrize(("tier", "stage"), [("cpu", 1), ("cpu", 2), ("cpu", 3), ("nvme", 3)])
def test_the_optimizer_in_backward_has_the_bits_of_step(tier: str, stage: int, micro_batches: int, tmp_path: Path) -> None:
    def trained(name: str, in_backward: bool) -> list[Any]:
        keys: dict[str, Any] = {"sluice": {"device": "host", **({"optimizer_in_backward": True} if in_backward else {})}}
        if stage < 3:
            keys["zero_optimization"] = {"stage": stage, "offload_optimizer": {"device": tier}}
        return run(tmp_path / name, 2, tier, micro_batches=micro_batches, keys=keys, sees_gradients=False)

    for mine, theirs in zip(trained("a", True), trained("b", False), strict=True):
        assert_equal(mine, theirs)


# One rank is slow, and has a gradient that is not finite: both ranks see the error at step(), and go on from a checkpoint.
HALTED = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from small_models import Tied, batch, config, engine_of, loss_of, make
rank = int(os.environ["RANK"])
engine = engine_of(make(Tied), config(sluice={"device": "host", "optimizer_in_backward": True}))
ids, targets = batch(rank)
def step():
    engine.backward(loss_of(engine(ids), targets))
    engine.step()
step()
engine.save_checkpoint(os.path.join(sys.argv[2], "saved"))
weight = engine.module.blocks[-1].down.weight
def spoil(gradient):
    time.sleep(0.3)
    return gradient * torch.nan
handle = weight.register_hook(spoil) if rank == 0 else None
try:
    step()
    error = ""
except RuntimeError as caught:
    error = str(caught)
if handle is not None:
    handle.remove()
engine.load_checkpoint(os.path.join(sys.argv[2], "saved"))
step()
open(os.path.join(sys.argv[2], os.environ["RANK"]), "w").write(json.dumps([error, engine.global_steps]))
engine.destroy()
"""


def test_ranks_that_update_in_backward_fail_together_and_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    for error, steps in run_text(HALTED, tmp_path):
        assert "is not finite. With optimizer_in_backward" in error
        assert steps == 2
