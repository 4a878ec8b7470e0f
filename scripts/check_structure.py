#!/usr/bin/env python3
"""Checks how the sources are laid out, and how public headers and pages are worded; exits with 1 on a finding.

scripts/check_structure.py [--list] [--root TREE]. It prints: circles of includes between the files of a component,
and of imports between Python modules; includes against the order of components or of rooms (docs/architecture.md,
"Layers" and "Rooms"); folders of more than 20 files, files of more than 400 lines and structs of public headers with
more than 20 fields; sentences that begin with "Of", "What" or "The same" in public headers, README.md and docs/;
files that these pages name and that do not exist, or that a page about the code names without a folder; symbols that
the pages name with a file that lacks them. --list also prints the order of components and rooms with their files, as
it was read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from structure.circles import check_circles
from structure.fields import check_fields
from structure.order import check_components, check_rooms, layers_of, room_of, rooms_of, ranks_of, text_of
from structure.paths import check_paths
from structure.prose import check_prose
from structure.python_imports import check_imports
from structure.sizes import check_exceptions, check_folders, check_lines
from structure.symbols import check_symbols
from structure.tree import Finding, Tree

REPOSITORY = Path(__file__).resolve().parent.parent
CHECKS = (
    check_circles,
    check_imports,
    check_components,
    check_rooms,
    check_folders,
    check_lines,
    check_fields,
    check_exceptions,
    check_prose,
    check_paths,
    check_symbols,
)


def findings_of(tree: Tree) -> list[Finding]:
    return tree.findings + [finding for check in CHECKS for finding in check(tree)]


def print_order(tree: Tree) -> None:
    print("components, top to bottom (files):")
    for names in layers_of(text_of(tree), tree.components):
        print("  " + "  ".join(f"{name} ({len(tree.sources[name])})" for name in names))
    for folder, lines in rooms_of(text_of(tree)).items():
        ranks = ranks_of(lines)
        files = [file for files in tree.sources.values() for file in files if file.startswith(folder + "/")]
        counts = Counter(room_of(file, folder, ranks) for file in files)
        print(f"{folder}, top to bottom (files):")
        for names in lines:
            print("  " + "  ".join(f"{name}/ ({counts[name]})" for name in names))
    print()


def print_findings(findings: list[Finding]) -> None:
    by_rule: dict[str, list[Finding]] = {}
    for finding in findings:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, found in by_rule.items():
        print(f"{rule}: {len(found)}")
        for finding in found:
            print(f"  {finding.place}: {finding.text}")
        print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the order of components and rooms too")
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="the tree to check (default: this one)")
    arguments = parser.parse_args()
    tree = Tree(arguments.root.resolve())
    if not tree.components:
        print(f"{arguments.root} has no components", file=sys.stderr)
        return 2
    if arguments.list:
        print_order(tree)
    findings = findings_of(tree)
    print_findings(findings)
    files = sum(map(len, tree.sources.values()))
    print(
        f"structure: {len(tree.components)} components, {files} files, {len(tree.includes)} includes,"
        f" {len(findings)} findings"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
