"""One rank of restarted_test.py: trains, and resumes what an earlier start has trained. Argument: a folder.

Rank 1 kills itself in the backward of its third step, in the first two starts: the step before is committed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from small_models import batch, config, engine_of, loss_of, make

STEPS = 6


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    start = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "2"))
    keys = config("nvme", folder)
    keys["sluice"]["threads"] = {"compute": 1}
    model = make(blocks=1)
    engine = engine_of(model, keys, resume=True)
    first = engine.global_steps
    for step in range(first, STEPS):
        ids, targets = batch(2 * step + rank)
        if rank == 1 and start < 2 and step == first + 2:
            model.norm.register_full_backward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        loss = loss_of(engine(ids), targets)
        engine.backward(loss)
        engine.step()
    # In one piece: the ranks share a pipe, and torchrun's Python writes each argument of print() and its end by itself.
    sys.stdout.write(f"rank {rank}, start {start}: from step {first} to {engine.global_steps}, {loss.item()!r}\n")
    engine.destroy()


main()
