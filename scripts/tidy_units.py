#!/usr/bin/env python3
"""Prints the units that clang-tidy has to read, one a line, and with --headers the precompiled headers that they need.

scripts/tidy_units.py BUILD [--headers] [FILE...]. BUILD has the compile_commands.json. Without files: all units of the
tree. With files: those that are units, and for a header the unit of its name, or else the nearest one that includes it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path

from structure.circles import name_without_suffix
from structure.tree import Tree

REPOSITORY = Path(__file__).resolve().parent.parent
PRECOMPILED = re.compile(r"-include-pch -Xclang (\S+)")


def units_of(build: Path) -> dict[str, str]:
    """File, relative to the repository -> its command; without what the build generated."""
    units = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = os.path.relpath(entry["file"], REPOSITORY)
        if not file.startswith(("..", "build")) and file.endswith(".cpp"):
            units[file] = entry["command"]
    return units


def includers_of(header: str, units: dict[str, str], tree: Tree) -> list[str]:
    """The units that include a header of a component, the nearest first."""
    includers: dict[str, list[str]] = {}
    for include in tree.includes:
        includers.setdefault(include.target, []).append(include.file)
    seen = [header]
    for file in seen:
        seen += [includer for includer in includers.get(file, []) if includer not in seen]
    return [file for file in seen if file in units]


def unit_for(header: str, units: dict[str, str], tree: Tree) -> str | None:
    """The unit of the header's name, else the nearest of its component, else any that includes it."""
    name, component = os.path.basename(name_without_suffix(header)), tree.component_of(header)
    includers = includers_of(header, units, tree)
    own = [unit for unit in includers if tree.component_of(unit) == component]
    named = [unit for unit in own if Path(unit).stem == name]
    written = re.compile(rf'#include "(?:\S*/)?{re.escape(os.path.basename(header))}"')
    for unit in named + own + includers:
        return unit
    # Headers of tests and benches, whose includes the tree does not have.
    return next((unit for unit in sorted(units) if written.search((REPOSITORY / unit).read_text())), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--headers", action="store_true")
    parser.add_argument("files", nargs="*")
    arguments = parser.parse_args()
    units = units_of(arguments.build)
    chosen = set(units)
    if arguments.files:
        tree = Tree(REPOSITORY)
        found = [file if file in units else unit_for(file, units, tree) for file in arguments.files]
        chosen = {unit for unit in found if unit}
    if arguments.headers:
        headers = {match[1] for unit in chosen for match in PRECOMPILED.finditer(units[unit])}
        lines = {os.path.relpath(header, arguments.build.resolve()) for header in headers}
    else:
        lines = chosen
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
