"""One rank of wrong_ranks_test.py: trains, and does on rank 1 what the test asks. Argument: what."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time

import torch
from small_models import Tied, batch, config, engine_of, loss_of, make

STEPS = 4


class Skipping(Tied):
    """Leaves out a block in its forward where it is told to."""

    skips = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for index, block in enumerate(self.blocks):
            if not (self.skips and index == 1):
                x = block(x)
        return self.head(self.norm(x))


def main() -> None:
    what, is_wrong = sys.argv[1], os.environ["RANK"] == "1"
    keys = config()
    keys["sluice"]["threads"] = {"compute": 1}
    if what == "rate" and is_wrong:
        keys["optimizer"]["params"]["lr"] = 0.5
    model = make(Skipping, blocks=4 if what == "model" and is_wrong else 3)
    engine = engine_of(model, keys)
    for step in range(STEPS):
        if is_wrong and step == 2:
            if what == "end":
                return
            if what in ("SIGSTOP", "SIGKILL"):
                time.sleep(2)  # the others know what it does within a second
                os.kill(os.getpid(), getattr(signal, what))
            if what == "error":
                raise ValueError("no data")
            model.skips = what == "skip"
        if what == "boundary" and step == 2:
            engine.set_gradient_accumulation_boundary(is_wrong)
        if what == "save" and step == 2 and is_wrong:
            engine.save_checkpoint(sys.argv[2])
        ids, targets = batch(step)
        if what == "drop":
            loss = loss_of(engine(ids), targets)
            del engine
            gc.collect()
            loss.backward()
            break
        engine.backward(loss_of(engine(ids), targets))
        if what == "half":
            break
        engine.step()
    print("all steps")


main()
