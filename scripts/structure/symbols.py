"""Symbols that the pages name with a file: the last part of each name occurs in that file.

A page says `name` (`file`) or `name` in `file`, with one name or several. In a row of a table whose second cell is
files, the third cell's other names belong to these files.
"""

from __future__ import annotations

import re

from structure.paths import SUFFIXES, is_elsewhere
from structure.prose import Paragraph, page_paragraphs, pages_of
from structure.tree import Finding, Tree

CODE = r"`[^`\n]+`"
NAMED = re.compile(rf"((?:{CODE}(?:, | and |, and ))*{CODE})(?: \(| in )({CODE})")
NAME = re.compile(r"(?:\w+::)*~?([A-Za-z_]\w*)(?:\(\))?$")
FILES = re.compile(rf"{CODE}(?:, {CODE})*$")


def names_in(codes: str) -> list[tuple[str, str]]:
    """(name, its last part) for each code that is a name of C++ or Python; keys, commands and files are none."""
    found = []
    for code in re.findall(CODE, codes):
        match = NAME.match(code.strip("`"))
        if match:
            found.append((code.strip("`"), match[1]))
    return found


def words_of(tree: Tree, codes: str) -> set[str]:
    """The words of the files among the codes; empty where one of them is no source of this tree."""
    words: set[str] = set()
    for code in re.findall(CODE, codes):
        path = tree.root / code.strip("`")
        if not path.name.endswith(SUFFIXES) or is_elsewhere(code.strip("`")) or not path.is_file():
            return set()
        words.update(re.findall(r"\w+", path.read_text(errors="replace")))
    return words


def absent(tree: Tree, place: str, codes: str, files: str) -> list[Finding]:
    words = words_of(tree, files)
    if not words:
        return []
    named = files.replace("`", "")
    return [
        Finding("symbol named", place, f"{name} does not occur in {named}")
        for name, last in names_in(codes)
        if last not in words
    ]


def check_text(tree: Tree, page: str, paragraph: Paragraph) -> list[Finding]:
    findings, starts, joined = [], [], ""
    for line in paragraph:
        starts.append((len(joined), line.number))
        joined += line.text + " "
    for match in NAMED.finditer(joined):
        number = next(number for start, number in reversed(starts) if start <= match.start())
        findings += absent(tree, f"{page}:{number}", match[1], match[2])
    return findings


def check_row(tree: Tree, place: str, row: str) -> list[Finding]:
    cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
    if len(cells) != 3 or not FILES.match(cells[1]):
        return []
    return absent(tree, place, NAMED.sub("", cells[2]), cells[1])


def check_symbols(tree: Tree) -> list[Finding]:
    findings = []
    for page in pages_of(tree):
        text = (tree.root / page).read_text(errors="replace")
        findings += [finding for paragraph in page_paragraphs(text) for finding in check_text(tree, page, paragraph)]
        for number, line in enumerate(text.splitlines(), start=1):
            if line.startswith("|"):
                findings += check_row(tree, f"{page}:{number}", line)
    return findings
