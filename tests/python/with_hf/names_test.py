"""Every name of DeepSpeed's that Transformers, Accelerate, PEFT and TRL use is there, or is refused with a reason."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = ("transformers", "accelerate", "peft", "trl")
# Names of parts that Sluice refuses: paths that one of these begins.
REFUSED = {
    "deepspeed.launcher": "a launcher over hosts: torchrun starts the ranks",
    "deepspeed.runtime.sequence_parallel": "sequence parallelism",
    "deepspeed.utils.groups._get_sequence_parallel": "sequence parallelism",
    "deepspeed.tp_model_init": "tensor parallelism",
    "deepspeed.runtime.utils.move_to_device": "a script of Accelerate's own tests",
    "deepspeed.utils.is_initialized": "behind hasattr: DeepSpeed has it no more",
}


def used_names(source: str) -> set[str]:
    """Dotted names of deepspeed that a file imports, or reads as attributes of it or of what it imports from it."""
    tree = ast.parse(source)
    known: dict[str, str] = {}  # local names
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "deepspeed":
                    known[name.asname or "deepspeed"] = name.name if name.asname else "deepspeed"
                    found.add(name.name)
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "deepspeed":
            for name in node.names:
                known[name.asname or name.name] = f"{node.module}.{name.name}"
                found.add(f"{node.module}.{name.name}")
    for node in ast.walk(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in known:
            found.add(".".join([known[inner.id], *reversed(parts)]))
    return found


def names_of_libraries() -> Iterator[tuple[str, str]]:
    for library in LIBRARIES:
        spec = importlib.util.find_spec(library)
        assert spec is not None and spec.submodule_search_locations
        for path in Path(spec.submodule_search_locations[0]).rglob("*.py"):
            text = path.read_text(errors="replace")
            if "deepspeed" in text and "bnb_deepspeed" not in text:
                yield from ((name, f"{library}/{path.name}") for name in used_names(text))


RESOLVE = """
import importlib, json, sys
import sluice.as_deepspeed

def problem(path):
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            last = str(error)
            continue
        try:
            for part in parts[count:]:
                found = getattr(found, part)
        except AttributeError as error:
            return str(error)
        return ""
    return last

print(json.dumps({path: problem(path) for path in json.loads(sys.stdin.read())}))
"""


def test_every_name_that_the_libraries_use_is_there() -> None:
    places: dict[str, str] = {}
    for name, place in names_of_libraries():
        places.setdefault(name, place)
    assert {"deepspeed.initialize", "deepspeed.zero.GatheredParameters", "deepspeed.runtime.zero.partition_parameters"} <= set(places)
    result = subprocess.run(
        [sys.executable, "-c", RESOLVE], input=json.dumps(sorted(places)), capture_output=True, text=True, timeout=180, check=False
    )
    assert result.returncode == 0, result.stderr
    problems = {name: why for name, why in json.loads(result.stdout).items() if why}
    unknown = {name: (why, places[name]) for name, why in problems.items() if not name.startswith(tuple(REFUSED))}
    assert unknown == {}
    unused = [prefix for prefix in REFUSED if not any(name.startswith(prefix) for name in problems)]
    assert unused == []  # a name that is there again leaves the list
