"""One of two ranks of waiting_ranks_test.py, which do not make the same calls. Arguments: the rank, a folder to meet in, what."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from small_models import Tied, batch, config, engine_of, loss_of, make

import sluice

RANK, WHAT = int(sys.argv[1]), sys.argv[3]
OUTSIDE_SECONDS = 8


class Scaled(Tied):
    """On one rank its forward ends with an operation without parameters."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = super().forward(ids)
        return logits * 0.5 if RANK == 1 else logits


def evaluate(engine: Any) -> None:
    with torch.no_grad():
        engine(batch(9)[0])


def main() -> None:
    sluice.init_distributed(init_method=f"file://{sys.argv[2]}/meet", rank=RANK, world_size=2)
    keys = config("device", zero_optimization={"stage": 3 if WHAT == "scaled" else 1})
    if WHAT == "failing" and RANK == 1:
        keys["optimizer"]["params"]["lr"] = -1
    if WHAT == "dropping":
        keys["gradient_accumulation_steps"] = 2
    engine = engine_of(make(Scaled if WHAT == "scaled" else Tied, blocks=1), keys)
    ids, targets = batch(RANK)
    engine.backward(loss_of(engine(ids), targets))
    if WHAT == "dropping" and RANK == 1:
        engine.zero_grad()
    engine.step()
    if WHAT in ("evaluation", "engine"):
        time.sleep(OUTSIDE_SECONDS * RANK)  # as a barrier of the script, that ends
        evaluate(engine if WHAT == "evaluation" else engine_of(make(blocks=1), keys))
    elif WHAT in ("dropping", "scaled"):
        engine.backward(loss_of(engine(ids), targets))
        engine.step()
    elif RANK == 0 and WHAT == "weights":
        engine.module_state_dict()
    else:
        evaluate(engine)
    engine.destroy()
    print("done")


main()
