"""One of two ranks of unfinished_step_test.py: its engine ends behind a backward that no step() followed.

Arguments: the rank, and a folder for the ranks to meet in and for the drive.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from small_models import batch, config, engine_of, loss_of, make

import sluice

RANK, PLACE = int(sys.argv[1]), Path(sys.argv[2])
SLOW_SECONDS = 1.0


def main() -> None:
    sluice.init_distributed(init_method=f"file://{PLACE}/meet", rank=RANK, world_size=2)
    own = {"device": "host", "durability": "none"}
    keys = config("nvme", PLACE / "drive", gradient_accumulation_steps=2, sluice=own)
    engine = engine_of(make(), keys, resume=False)
    for part in range(5):
        ids, targets = batch(10 * part + RANK)
        logits = engine(ids)
        if part == 4 and RANK == 1:
            logits.register_hook(lambda gradient: time.sleep(SLOW_SECONDS))
        engine.backward(loss_of(logits, targets))
        if part < 4:
            engine.step()
    engine.destroy()
    again = engine_of(make(), keys, resume=True)
    assert again.global_steps == 2
    again.destroy()
    print("done")


main()
