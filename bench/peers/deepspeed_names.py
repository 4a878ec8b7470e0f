#!/usr/bin/env python3
"""Writes docs/deepspeed_names.md: the public names of the installed deepspeed, and what becomes of each in Sluice.

PYTHONPATH=FOLDER_OF_SLUICE bench/peers/.venv/bin/python bench/peers/deepspeed_names.py docs/deepspeed_names.md

A name is public when it has no leading underscore and DeepSpeed defines it; names that a class has from PyTorch are left
out. "same": Sluice has the name. "not there": using it is an error that says so; a reason is given where one holds for
all names of a kind.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

# DeepSpeed's object, and ours.
OBJECTS = [
    ("deepspeed", "sluice"),
    ("deepspeed.zero", "sluice.zero"),
    ("deepspeed.ops", "sluice.ops"),
    ("deepspeed.ops.adam", "sluice.ops.adam"),
    ("deepspeed.ops.adagrad", "sluice.ops.adagrad"),
    ("deepspeed.ops.lion", "sluice.ops.lion"),
    ("deepspeed.comm", "sluice.comm"),
    ("deepspeed.utils", "sluice.utils"),
    ("deepspeed.checkpointing", "sluice.checkpointing"),
    ("deepspeed.runtime.lr_schedules", "sluice.runtime.lr_schedules"),
    ("deepspeed.DeepSpeedEngine", "sluice.SluiceEngine"),
    ("deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3", "sluice.SluiceOptimizer"),
    ("deepspeed.accelerator.get_accelerator()", "sluice.accelerator.get_accelerator()"),
]
REASONS = [
    (r"pipe|Pipeline|DualPipe|virtual_pipeline", "one rank trains: no pipeline"),
    (r"[Ii]nference|replace_transformer|revert_transformer|Hybrid|module_inject", "training only"),
    (r"tp_|autotp|tensor_parallel|model_parallel|mpu|mp_|_mp\b|sequence_parallel|seq_parallel", "one rank trains: no tensor or sequence parallelism"),
    (r"moe|expert|MoE", "one rank trains: experts are ordinary modules"),
    (r"all_?reduce|reduce_scatter|all_to_all|partition|bucket|ipg|allgather|broadcast|nccl|coalesc|overlap_comm", "one rank trains: nothing is reduced or partitioned"),
    (r"flops|eigenvalue|pld|progressive|curriculum|data_efficiency|random_ltd|monitor|tensorboard|wandb|csv|comet|compression|quantiz|sparse|amp|elastic|autotuning|nebula|swap_tensor", "the feature is not there"),
    (r"OneBit|ZeroOne|FusedAdam|Lamb|Muon", "a class of GPU or compressed optimizers; the configuration's \"optimizer\" has the formulas that are there"),
    (r"Transformer", "no fused layers"),
]


def resolve(path: str) -> Any:
    """An object by its path; the last parts may be attributes, and a call at the end is made."""
    called = path.endswith("()")
    parts = path.removesuffix("()").split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found() if called else found
    raise ModuleNotFoundError(path)


def is_deepspeeds(name: str, value: Any) -> bool:
    if inspect.ismodule(value):
        return value.__name__.startswith("deepspeed")
    return str(getattr(value, "__module__", None) or "").startswith(("deepspeed", "builtins.method"))


def public_names(found: Any) -> Iterator[str]:
    if inspect.isclass(found) or not inspect.ismodule(found):
        kind = found if inspect.isclass(found) else type(found)
        torchs = {name for base in (torch.nn.Module, torch.optim.Optimizer) for name in dir(base)}
        yield from (name for name in sorted(dir(kind)) if not name.startswith("_") and name not in torchs)
        return
    for name in sorted(vars(found)):
        if not name.startswith("_") and not name.isupper() and is_deepspeeds(name, vars(found)[name]):
            yield name


def reason_of(name: str) -> str:
    return next((reason for pattern, reason in REASONS if re.search(pattern, name)), "")


def fates(theirs: Any, ours: Any) -> Iterator[tuple[str, str, str]]:
    for name in public_names(theirs):
        try:
            there = hasattr(ours, name)
        except Exception:  # a property of a class that wants an instance
            there = True
        yield (name, "same", "") if there else (name, "not there", reason_of(name))


def main() -> None:
    import deepspeed
    import sluice

    counts: Counter[str] = Counter()
    lines = []
    for theirs, ours in OBJECTS:
        rows = list(fates(resolve(theirs), resolve(ours)))
        counts.update(fate for _, fate, _ in rows)
        same = sum(fate == "same" for _, fate, _ in rows)
        lines += ["", f"## {theirs}", "", f"Here: `{ours}`. {same} of {len(rows)} names.", "", "| name | here | why |", "|---|---|---|"]
        lines += [f"| `{name}` | {fate} | {why} |" for name, fate, why in rows]
    head = [
        "# DeepSpeed's names",
        "",
        f"Written by `bench/peers/deepspeed_names.py` from DeepSpeed {deepspeed.__version__} and Sluice {sluice.__version__}.",
        f"{counts['same']} names are the same, {counts['not there']} are not there: using one is an error that names it.",
        "[From DeepSpeed](from_deepspeed.md) says what behaves differently. Names of PyTorch's base classes are left out.",
        "`engine.name` of an unknown name is the model's, as in DeepSpeed.",
    ]
    Path(sys.argv[1]).write_text("\n".join(head + lines) + "\n")
    print(dict(counts))


if __name__ == "__main__":
    main()
