#!/usr/bin/env python3
"""Writes rates and betas of DeepSpeed's schedulers, for tests/python/with_torch/parts/deepspeed_parts_test.py.

bench/peers/.venv/bin/python bench/peers/deepspeed_schedules.py FILE: 40 updates of each case, two parameter groups, as
hexadecimal floats.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import deepspeed.runtime.lr_schedules as schedules
import torch

STEPS = 40
CYCLE = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 11}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("WarmupLR", {"warmup_num_steps": 17}),
    ("WarmupLR", {"warmup_num_steps": 1, "warmup_max_lr": 3e-3}),
    ("WarmupLR", {"warmup_num_steps": 13, "warmup_type": "linear", "warmup_min_lr": [1e-5, 2e-6], "warmup_max_lr": [1e-3, 2e-3]}),
    ("WarmupDecayLR", {"total_num_steps": 30, "warmup_num_steps": 7, "warmup_max_lr": 3.3e-4}),
    ("WarmupDecayLR", {"total_num_steps": 5, "warmup_num_steps": 9}),
    ("WarmupCosineLR", {"total_num_steps": 30, "warmup_num_steps": 7, "warmup_min_ratio": 0.1}),
    ("WarmupCosineLR", {"total_num_steps": 6, "warmup_num_steps": 7, "warmup_type": "linear"}),
    ("LRRangeTest", {"lr_range_test_step_size": 7, "lr_range_test_step_rate": 1.3}),
    ("LRRangeTest", {"lr_range_test_step_size": 7, "lr_range_test_staircase": True}),
    ("OneCycle", CYCLE),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 17, "cycle_first_stair_count": 3, "cycle_second_stair_count": 5,
                  "decay_step_size": 4, "decay_lr_rate": 0.3, "decay_mom_rate": 0.01}),
    ("OneCycle", {**CYCLE, "cycle_momentum": False, "decay_step_size": 4, "decay_lr_rate": 0.3}),
]


def steps_of(name: str, arguments: dict[str, Any]) -> list[list[str]]:
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([{"params": [first], "lr": 3e-4}, {"params": [second], "lr": 7e-5}], lr=1e-3)
    schedule = getattr(schedules, name)(optimizer, **arguments)
    seen = []
    for _ in range(STEPS):
        seen.append([float(value).hex() for group in optimizer.param_groups for value in (group["lr"], group["betas"][0])])
        schedule.step()
    return seen


def main() -> None:
    schedules.logger.setLevel(logging.ERROR)
    made = [
        {"type": name, "number": number, "arguments": arguments, "steps": steps_of(name, arguments)}
        for number, (name, arguments) in enumerate(CASES)
    ]
    Path(sys.argv[1]).write_text("[\n" + ",\n".join(json.dumps(case) for case in made) + "\n]\n")


if __name__ == "__main__":
    main()
