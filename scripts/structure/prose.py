"""Sentences that begin with "Of", "What" or "The same", in the comments of public headers and in the pages."""

from __future__ import annotations

import re
from typing import NamedTuple

from structure.tree import SOURCE_SUFFIXES, Finding, Tree, files_below

# After the start of a paragraph or the end of a sentence; quotes, brackets and emphasis may stand between.
OPENING = re.compile(r"""(?:^|[.!?:]["')*_`]*\s+)["'(*_`]*(Of|What|The same)\b""")
COMMENT = re.compile(r"^//[/!]?<?")
SENTENCE_END = re.compile(r"(?<=[.!?])\s")
LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+(.*)$")
STRING = re.compile(r'"(?:\\.|[^"\\])*"')


class Line(NamedTuple):
    number: int
    text: str


Paragraph = list[Line]


def without_strings(line: str) -> str:
    """The line with the contents of its string literals blanked, of the same length."""
    return STRING.sub(lambda match: '"' + " " * (len(match[0]) - 2) + '"', line)


def comment_paragraphs(text: str) -> list[Paragraph]:
    """Comments of a source file: lines of // that follow one another are one paragraph, an empty one ends it.

    A comment behind code begins a paragraph, which goes on in lines whose // is in the same column.
    """
    paragraphs: list[Paragraph] = [[]]
    block = False
    column = 0
    for number, line in enumerate(text.splitlines(), start=1):
        code = without_strings(line)
        start = code.find("//")
        begin = code.find("/*")
        if block or (begin >= 0 and (start < 0 or begin < start)):
            inside = line if block else line[begin + 2 :]
            block = "*/" not in inside
            paragraphs[-1].append(Line(number, inside.split("*/")[0].strip().lstrip("*").strip()))
            continue
        said = COMMENT.sub("", line[start:]).strip() if start >= 0 else ""
        if not said or code[:start].strip() or start != column:
            paragraphs.append([])
        if said:
            paragraphs[-1].append(Line(number, said))
        column = start
    return [paragraph for paragraph in paragraphs if paragraph]


def page_paragraphs(text: str) -> list[Paragraph]:
    """Paragraphs, list items and table cells of a page; headings and code are left out."""
    paragraphs: list[Paragraph] = [[]]
    fenced = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            paragraphs.append([])
            continue
        item = LIST_ITEM.match(line)
        continues = bool(paragraphs[-1]) and not item
        if fenced or not line.strip() or line.startswith("#") or (line.startswith("    ") and not continues):
            paragraphs.append([])
        elif line.lstrip().startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            paragraphs += [[Line(number, cell)] for cell in cells] + [[]]
        elif item:
            paragraphs.append([Line(number, item[1])])
        else:
            paragraphs[-1].append(Line(number, line.strip().lstrip("> ")))
    return [paragraph for paragraph in paragraphs if paragraph]


def openings_of(paragraph: Paragraph) -> list[tuple[int, str]]:
    """(line, beginning of the sentence) for each sentence that begins with one of the words."""
    starts, joined = [], ""
    for line in paragraph:
        starts.append((len(joined), line.number))
        joined += line.text + " "
    found = []
    for match in OPENING.finditer(joined):
        number = next(number for start, number in reversed(starts) if start <= match.start(1))
        found.append((number, SENTENCE_END.split(joined[match.start(1) :].strip())[0][:60]))
    return found


def check_file(tree: Tree, file: str) -> list[Finding]:
    text = (tree.root / file).read_text(errors="replace")
    paragraphs = page_paragraphs(text) if file.endswith(".md") else comment_paragraphs(text)
    return [
        Finding("beginning of a sentence", f"{file}:{number}", f'"{words}"')
        for paragraph in paragraphs
        for number, words in openings_of(paragraph)
    ]


def pages_of(tree: Tree) -> list[str]:
    """README.md and the pages below docs/."""
    pages = ["README.md"] + [file for file in files_below(tree.root, "docs") if file.endswith(".md")]
    return [page for page in pages if (tree.root / page).is_file()]


def check_prose(tree: Tree) -> list[Finding]:
    headers = [
        file
        for component in tree.components
        for file in files_below(tree.root, f"{component}/include")
        if file.endswith(SOURCE_SUFFIXES)
    ]
    return [finding for file in headers + pages_of(tree) for finding in check_file(tree, file)]
