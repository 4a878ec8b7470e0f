#!/usr/bin/env python3
"""Writes docs/deepspeed_names.md: the public names of the installed deepspeed, and what becomes of each in Sluice.

PYTHONPATH=FOLDER_OF_SLUICE bench/peers/.venv/bin/python bench/peers/deepspeed_names.py docs/deepspeed_names.md

A name is public when it has no leading underscore and DeepSpeed defines it; names that a class has from PyTorch are left
out. An engine and an optimizer have the names of their class, and those that its methods set. "same": Sluice has the name.
"refused": using it is an error that gives the reason (sluice._refusals). "not there": using it is an error.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
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


def members_of(kind: type) -> set[str]:
    """Names that the methods of a class set on its objects."""
    return {
        node.attr
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(kind))))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def public_names(found: Any) -> Iterator[str]:
    if inspect.isclass(found) or not inspect.ismodule(found):
        kind = found if inspect.isclass(found) else type(found)
        torchs = {name for base in (torch.nn.Module, torch.optim.Optimizer) for name in dir(base)}
        names = {*dir(kind), *members_of(kind)}
        yield from (name for name in sorted(names) if not name.startswith("_") and name not in torchs)
        return
    for name in sorted(vars(found)):
        if not name.startswith("_") and not name.isupper() and is_deepspeeds(name, vars(found)[name]):
            yield name


def fates(theirs: Any, ours: Any) -> Iterator[tuple[str, str, str]]:
    from sluice._refusals import reason_of

    for name in public_names(theirs):
        try:
            there = hasattr(ours, name)
        except Exception:  # a property of a class that wants an instance
            there = True
        reason = "" if there else reason_of(name)
        yield name, "same" if there else "refused" if reason else "not there", reason


def tiny_engine() -> Any:
    import sluice

    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "sluice": {"device": "host"}}
    return sluice.initialize(model=torch.nn.Linear(2, 2), config=config)[0]


def main() -> None:
    import deepspeed
    import sluice

    counts: Counter[str] = Counter()
    lines = []
    engine = tiny_engine()
    made = {"sluice.SluiceEngine": engine, "sluice.SluiceOptimizer": engine.optimizer}
    for theirs, ours in OBJECTS:
        rows = list(fates(resolve(theirs), made.get(ours) or resolve(ours)))
        counts.update(fate for _, fate, _ in rows)
        same = sum(fate == "same" for _, fate, _ in rows)
        lines += ["", f"## {theirs}", "", f"Here: `{ours}`. {same} of {len(rows)} names.", "", "| name | here | why |", "|---|---|---|"]
        lines += [f"| `{name}` | {fate} | {why} |" for name, fate, why in rows]
    head = [
        "# DeepSpeed's names",
        "",
        f"Written by `bench/peers/deepspeed_names.py` from DeepSpeed {deepspeed.__version__} and Sluice {sluice.__version__}.",
        f"{counts['same']} names are the same, {counts['refused']} are refused with a reason, {counts['not there']} are not there: using one of "
        "these is an error that names it.",
        "Nothing that Transformers, Accelerate, PEFT or TRL use is missing (`tests/python/with_hf/names_test.py`).",
        "[From DeepSpeed](from_deepspeed.md) says what behaves differently. Names of PyTorch's base classes are left out.",
        "`engine.name` of an unknown name is the model's, as in DeepSpeed.",
    ]
    Path(sys.argv[1]).write_text("\n".join(head + lines) + "\n")
    engine.destroy()
    print(dict(counts))


if __name__ == "__main__":
    main()
