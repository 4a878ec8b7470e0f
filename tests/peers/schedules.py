"""The schedules that are compared with DeepSpeed's and torch's, and the rates of their own objects.

    schedules.py --write FILE

writes the rates as the golden values of tests/config/lr_golden_test.cpp. Needs the environment of scripts/test_peers.sh.
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 100


@dataclass(frozen=True)
class Case:
    """`libm`: the rates need a cosine, a logarithm or a power, whose last bit is the C library's."""

    name: str
    type: str
    params: dict[str, Any]
    lr: float = 3e-4
    libm: bool = False

    def config(self) -> dict[str, Any]:
        optimizer = {"type": "AdamW", "params": {"lr": self.lr, "betas": [0.9, 0.95]}}
        return {"train_batch_size": 8, "optimizer": optimizer, "scheduler": {"type": self.type, "params": self.params}}


CYCLE = {"cycle_min_lr": 1.3e-4, "cycle_max_lr": 1.1e-3}
CASES = [
    Case("warmup", "WarmupLR", {"warmup_min_lr": 1e-6, "warmup_num_steps": 30}, libm=True),
    Case("warmup linear", "WarmupLR", {"warmup_max_lr": 7e-4, "warmup_num_steps": 23, "warmup_type": "linear"}),
    Case("warmup one step", "WarmupLR", {"warmup_max_lr": 7e-4, "warmup_num_steps": 1, "warmup_type": "linear"}),
    Case("warmup decay", "WarmupDecayLR", {"total_num_steps": 77, "warmup_max_lr": 7e-4, "warmup_num_steps": 11}, libm=True),
    Case("warmup decay linear", "WarmupDecayLR", {"total_num_steps": 90, "warmup_num_steps": 9, "warmup_type": "linear"}),
    Case("warmup cosine", "WarmupCosineLR", {"total_num_steps": 83, "warmup_num_steps": 12, "cos_min_ratio": 0.1}, libm=True),
    Case(
        "warmup cosine linear",
        "WarmupCosineLR",
        {"total_num_steps": 83, "warmup_num_steps": 12, "warmup_min_ratio": 0.2, "warmup_type": "linear"},
        libm=True,
    ),
    Case("one cycle", "OneCycle", {**CYCLE, "cycle_first_step_size": 30}),
    Case("one cycle uneven", "OneCycle", {**CYCLE, "cycle_first_step_size": 17, "cycle_second_step_size": 41}),
    Case("one cycle no second half", "OneCycle", {**CYCLE, "cycle_first_step_size": 40, "cycle_second_step_size": 0}),
    Case(
        "one cycle stairs",
        "OneCycle",
        {**CYCLE, "cycle_first_step_size": 30, "cycle_second_step_size": 44, "cycle_first_stair_count": 4},
    ),
    Case(
        "one cycle two stairs",
        "OneCycle",
        {**CYCLE, "cycle_first_step_size": 33, "cycle_first_stair_count": 3, "cycle_second_stair_count": 7},
    ),
    Case(
        "one cycle decay",
        "OneCycle",
        {**CYCLE, "cycle_first_step_size": 20, "decay_step_size": 7, "decay_lr_rate": 0.3, "decay_mom_rate": 0.003},
    ),
    Case(
        "one cycle momentum",
        "OneCycle",
        {**CYCLE, "cycle_first_step_size": 25, "cycle_min_mom": 0.71, "cycle_max_mom": 0.97, "decay_step_size": 9, "decay_lr_rate": 2.0},
    ),
    Case("one cycle without momentum", "OneCycle", {**CYCLE, "cycle_first_step_size": 25, "cycle_momentum": False}),
    Case("range test", "LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 3.0}),
    Case(
        "range test stairs",
        "LRRangeTest",
        {"lr_range_test_step_size": 13, "lr_range_test_step_rate": 0.7, "lr_range_test_staircase": True},
    ),
    Case("constant", "ConstantLR", {"total_iters": 37}),
    Case("constant factor", "ConstantLR", {"factor": 0.7, "total_iters": 1}),
    Case("linear", "LinearLR", {"total_iters": 60}),
    Case("linear down", "LinearLR", {"start_factor": 0.9, "end_factor": 0.0, "total_iters": 71}),
    Case("polynomial", "PolynomialLR", {"total_iters": 88}),
    Case("polynomial power", "PolynomialLR", {"total_iters": 88, "power": 0.9}, libm=True),
    Case("step", "StepLR", {"step_size": 9, "gamma": 0.7}),
    Case("multi step", "MultiStepLR", {"milestones": [0, 20, 60, 60, 61], "gamma": 0.3}, libm=True),
    Case("exponential", "ExponentialLR", {"gamma": 0.93}),
    Case("cosine", "CosineAnnealingLR", {"T_max": 99}, libm=True),
    Case("cosine beyond", "CosineAnnealingLR", {"T_max": 13, "eta_min": 1e-5}, libm=True),
    Case("cosine at once", "CosineAnnealingLR", {"T_max": 1}, libm=True),
    Case("restarts", "CosineAnnealingWarmRestarts", {"T_0": 21, "eta_min": 2e-5}, libm=True),
    Case("restarts longer", "CosineAnnealingWarmRestarts", {"T_0": 7, "T_mult": 3}, libm=True),
]


def begun(case: Case) -> tuple[Any, Any]:
    """The optimizer and the schedule as DeepSpeed makes them from a file."""
    import torch
    from deepspeed.runtime import lr_schedules

    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.AdamW([parameter], lr=case.lr, betas=(0.9, 0.95))
    scheduler = getattr(lr_schedules, case.type, None) or getattr(torch.optim.lr_scheduler, case.type)
    return optimizer, scheduler(optimizer, **case.params)


def rates_of(case: Case, resumed_at: int | None = None) -> tuple[list[float], list[list[float]]]:
    """The rate and the betas of steps 1 to STEPS; `resumed_at`: that step is taken by objects that load the states of others."""
    optimizer, scheduler = begun(case)
    rates, betas = [], []
    for step in range(1, STEPS + 1):
        if step == resumed_at:
            states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
            optimizer, scheduler = begun(case)
            scheduler.load_state_dict(states[1])
            optimizer.load_state_dict(states[0])
        rates.append(float(optimizer.param_groups[0]["lr"]))
        betas.append([float(beta) for beta in optimizer.param_groups[0]["betas"]])
        optimizer.step()
        scheduler.step()
    return rates, betas


def golden() -> str:
    import deepspeed
    import torch

    lines = []
    for case in CASES:
        rates, betas = rates_of(case)
        entry = {"name": case.name, "libm": case.libm, "config": case.config(), "rates": [rate.hex() for rate in rates]}
        if case.type == "OneCycle":
            entry["betas"] = [[beta.hex() for beta in pair] for pair in betas]
        lines.append(json.dumps(entry))
    version = torch.__version__.split("+")[0]
    head = f'{{"from": "deepspeed {deepspeed.__version__}, torch {version}",\n "cases": [\n'
    return head + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--write":
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(golden())
