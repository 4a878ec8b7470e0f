#!/usr/bin/env python3
"""Measures what the hooks of sluice.offload take, for each unit and micro-batch.

bench/hook_overhead.py [--units 32] [--rounds 21] [--out FILE.json]

A model of small layers, each a unit, on the host, in plain PyTorch and with weights, gradients and states at home where
they compute, so that nothing moves. The difference of a forward and a backward, divided by the units, is what entering,
leaving and sending take in Python and below. Rounds alternate. The Python needs sluice and its PyTorch:
.cache/python/hf/bin/python, which scripts/test_python.sh makes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import sluice
import torch
from torch import nn

WIDTH, ROWS = 64, 8
CONFIG = {
    "train_micro_batch_size_per_gpu": ROWS,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "sluice": {"device": "host"},
}


def model_of(units: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(units)))


def pass_seconds(model: nn.Module, x: torch.Tensor, end: Callable[[], object]) -> float:
    """A forward and a backward; `end` ends the step, untimed."""
    begin = time.perf_counter()
    model(x).square().mean().backward()
    seconds = time.perf_counter() - begin
    end()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plain, offloaded = model_of(arguments.units), model_of(arguments.units)
    of_plain = torch.optim.AdamW(plain.parameters(), lr=1e-4)
    optimizer = sluice.offload(offloaded, CONFIG)
    x = torch.randn(ROWS, WIDTH)

    def end_plain() -> None:
        of_plain.step()
        of_plain.zero_grad()

    seconds: dict[str, list[float]] = {"plain": [], "sluice": []}
    for _ in range(arguments.rounds + 3):
        seconds["plain"].append(pass_seconds(plain, x, end_plain))
        seconds["sluice"].append(pass_seconds(offloaded, x, optimizer.step))
    optimizer.close()
    kept = {side: values[3:] for side, values in seconds.items()}  # the first ones warm up
    differences = [(mine - theirs) / arguments.units for mine, theirs in zip(kept["sluice"], kept["plain"])]
    median = statistics.median(differences)
    low, _, high = statistics.quantiles(differences, n=4)
    print(f"{median * 1e6:.0f} us for each unit and micro-batch (quartiles {low * 1e6:.0f} to {high * 1e6:.0f})")
    if arguments.out:
        facts = {"units": arguments.units, "seconds": kept, "seconds_of_a_unit": median, "torch": torch.__version__}
        arguments.out.write_text(json.dumps({**facts, "sluice": sluice.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
