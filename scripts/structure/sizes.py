"""Limits of folders and files."""

from __future__ import annotations

import posixpath
from collections import Counter

from structure.tree import Finding, Tree, files_below

MOST_FILES = 20
MOST_LINES = 400
LINE_SUFFIXES = (".cpp", ".hpp", ".c", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake")
# Folders and files that are larger for a reason: path -> (limit, reason). An entry that is no longer needed is a finding.
EXCEPTIONS: dict[str, tuple[int, str]] = {}


def check_limit(path: str, count: int, limit: int, unit: str) -> list[Finding]:
    limit, _ = EXCEPTIONS.get(path, (limit, ""))
    if count <= limit:
        return []
    return [Finding(f"too many {unit}", path, f"{count} {unit}, allowed are {limit}")]


def check_folders(tree: Tree) -> list[Finding]:
    """Files directly in each folder of a component; in a folder of tests or benches, those with code."""
    files = [file for component in tree.components for file in files_below(tree.root, component)]
    files += [file for room in ("tests", "bench") for file in files_below(tree.root, room) if file.endswith(LINE_SUFFIXES)]
    counts = Counter(posixpath.dirname(file) for file in files)
    findings = []
    for folder, count in sorted(counts.items()):
        findings += check_limit(folder, count, MOST_FILES, "files")
    return findings


def check_lines(tree: Tree) -> list[Finding]:
    findings = []
    for file in files_below(tree.root, "."):
        if file.endswith(LINE_SUFFIXES) and not (tree.root / file).is_symlink():
            count = (tree.root / file).read_bytes().count(b"\n")
            findings += check_limit(file, count, MOST_LINES, "lines")
    return findings


def check_exceptions(tree: Tree) -> list[Finding]:
    return [
        Finding("exception", path, "does not exist; remove its exception in scripts/structure/sizes.py")
        for path in EXCEPTIONS
        if not (tree.root / path).exists()
    ]
