"""Names that docs/deepspeed_names.md calls the same, and those that the tests use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

Use = tuple[str, str]  # what stands before the dot, and the name

# By heading of the page: what a test writes before the dot.
OWNERS = {
    "deepspeed": ("sluice", "deepspeed"),
    "deepspeed.zero": ("zero",),
    "deepspeed.ops": ("ops",),
    "deepspeed.ops.adam": ("adam",),
    "deepspeed.ops.adagrad": ("adagrad",),
    "deepspeed.ops.lion": ("lion",),
    "deepspeed.comm": ("comm",),
    "deepspeed.utils": ("utils",),
    "deepspeed.checkpointing": ("checkpointing",),
    "deepspeed.runtime.lr_schedules": ("lr_schedules",),
    "deepspeed.DeepSpeedEngine": ("engine",),
    "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": ("optimizer",),
    "deepspeed.accelerator.get_accelerator()": ("accelerator", "get_accelerator"),
}


def same_names(page: str) -> Iterator[tuple[str, str]]:
    """Heading and name of each row that says "same"."""
    heading = ""
    for line in page.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        row = re.match(r"\| `(\w+)` \| same \|", line)
        if row:
            yield heading, row[1]


def _last_name(value: ast.expr) -> str:
    """The name before a dot: b of a.b, and of a.b()."""
    if isinstance(value, ast.Call):
        return _last_name(value.func)
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def uses(source: str) -> set[Use]:
    """Attributes that a file reads, and names that it imports and reads. A line that is an attribute alone is no use."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    found: set[Use] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in alone:
            found.add((_last_name(node.value), node.attr))
        elif isinstance(node, ast.ImportFrom):
            parts = (node.module or "").split(".")
            for name in node.names:
                if (name.asname or name.name) in read:
                    path = [*parts, name.name]
                    found.update(zip(path, path[1:]))
    return found


def untested(page: str, sources: Iterable[str]) -> list[str]:
    """Names of the page that no source uses, by their whole path."""
    used = set().union(*map(uses, sources))
    return [f"{heading}.{name}" for heading, name in same_names(page) if not any((o, name) in used for o in OWNERS[heading])]
