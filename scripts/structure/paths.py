"""Files that the pages name in backticks: each exists, and a page about the code gives its folder."""

from __future__ import annotations

import re

from structure.order import PAGE
from structure.prose import pages_of
from structure.tree import Finding, Tree, hidden

SUFFIXES = (".cpp", ".hpp", ".cu", ".py", ".sh")
CODE = re.compile(r"`([^`\n]+)`")
PLACEHOLDER = re.compile(r"[A-Z]{2,}|[*<{$]|\.\.\.")  # DIR/plot.py, tests/*_test.cpp, <name>.hpp
BETWEEN = "\"'(),;:="
CODE_PAGES = (PAGE, "docs/developing.md", "docs/inside_python.md")


def files_named(text: str) -> list[tuple[int, str]]:
    """(line, word) for each word in backticks that ends like a source or a script; indented code is not read."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for code in CODE.findall(line):
            words = [word.strip(BETWEEN) for word in code.split()]
            found += [(number, word) for word in words if word.endswith(SUFFIXES)]
    return found


def is_elsewhere(word: str) -> bool:
    """A placeholder, a path outside of the tree, or a file of a run or a build."""
    outside = word.startswith(("/", "~", "run1/")) or ("/" in word and hidden(word.split("/")[0]))
    return outside or PLACEHOLDER.search(word) is not None


def exists(tree: Tree, word: str) -> bool:
    """Below the root, or below include/ of a component: `sluice/base/error.hpp`."""
    folders = [tree.root, *(tree.root / name / "include" for name in tree.components)]
    return any((folder / word).is_file() for folder in folders)


def check_paths(tree: Tree) -> list[Finding]:
    findings = []
    for page in pages_of(tree):
        for number, word in files_named((tree.root / page).read_text(errors="replace")):
            if is_elsewhere(word):
                continue
            place = f"{page}:{number}"
            if "/" not in word:
                if page in CODE_PAGES:
                    findings.append(Finding("file named", place, f"{word} lacks its folder"))
            elif not exists(tree, word):
                findings.append(Finding("file named", place, f"{word} does not exist"))
    return findings
