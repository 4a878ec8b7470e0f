"""One of two ranks of calls_inside_test.py. Arguments: the rank, a folder to meet in, and the stage."""

from __future__ import annotations

import sys

import torch
from small_models import CallsInside, config, engine_of, make

import sluice


def main() -> None:
    rank, place, stage = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sluice.init_distributed(init_method=f"file://{place}/meet", rank=rank, world_size=2)
    keys = config("device", zero_optimization={"stage": stage}, gradient_accumulation_steps=2)
    keys["sluice"]["threads"] = {"compute": 1}
    engine = engine_of(make(CallsInside), keys)
    losses = []
    for step in range(6):
        x, condition = CallsInside.batch(2 * step + rank)
        loss = engine(x, condition).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    torch.save(losses, f"{place}/losses{rank}.pt")
    engine.destroy()
    print("done")


main()
