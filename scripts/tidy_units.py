#!/usr/bin/env python3
"""Prints the units that clang-tidy has to read, one a line: a key and the file.

scripts/tidy_units.py BUILD [--headers] [FILE...]. BUILD has the compile_commands.json. Without files: all units of the
tree. With files: those that are units, and for a header the unit of its name, or else the nearest one that includes it.
A key stands for all that decides the outcome: the checks, the unit, its headers of this project, its command, the
version of LibTorch. --headers: prints the precompiled headers that the units need instead.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from pathlib import Path

from structure.circles import name_without_suffix
from structure.tree import Tree

REPOSITORY = Path(__file__).resolve().parent.parent
PRECOMPILED = re.compile(r"-include-pch -Xclang (\S+)")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
FOLDER = re.compile(r"(?:-I|-isystem )\s*(\S+)")


def units_of(build: Path) -> dict[str, str]:
    """File, relative to the repository -> its command; what the build generated only where it includes sources of ours."""
    units = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        file = os.path.relpath(entry["file"], REPOSITORY)
        if "/Unity/" in file or (not file.startswith(("..", "build")) and file.endswith(".cpp")):
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


def headers_of(file: Path, folders: list[Path], seen: set[Path]) -> None:
    """Adds the file and the headers of this project that it includes, directly or not, to `seen`."""
    seen.add(file)
    for name in INCLUDE.findall(file.read_text()):
        found = next((place for place in [file.parent / name, *(folder / name for folder in folders)] if place.is_file()), None)
        if found and found.resolve() not in seen:
            headers_of(found.resolve(), folders, seen)


def key_of(unit: str, command: str) -> str:
    own = [Path(folder) for folder in FOLDER.findall(command)]
    own = [folder for folder in own if folder.is_relative_to(REPOSITORY) and ".venv" not in folder.parts]
    files: set[Path] = set()
    headers_of((REPOSITORY / unit).resolve(), own, files)
    settings = [REPOSITORY / ".clang-tidy", *REPOSITORY.glob(".venv/lib/python3*/site-packages/torch/version.py")]
    key = hashlib.sha256(command.encode())
    for file in [*sorted(files), *sorted(settings)]:
        key.update(str(file).encode() + b"\0" + file.read_bytes() + b"\0")
    return key.hexdigest()


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
        lines = {f"{key_of(unit, units[unit])} {unit}" for unit in chosen}
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
