"""The order of components and of rooms, read from docs/architecture.md, and the includes against it.

Components: the first indented or fenced block below the heading "Layers", from top to bottom; a line begins with the
names of one or more components. Rooms: below the heading "Rooms", for each folder that has rooms a paragraph that names
the folder (engine/train/src) and a block. A line of that block begins with one or more rooms, whose names end in a
slash; ./ stands for the files that are in no room. An arrow may point to a line below, or stay within one room.
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from structure.tree import Finding, Include, Tree, subfolders

PAGE = "docs/architecture.md"
FOLDER = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*/src\b")
ROOM = re.compile(r"\.?/|(?:[A-Za-z0-9_]+/)+")
HEADING = re.compile(r"(#+)\s+(.*?)\s*$")


class Block(NamedTuple):
    before: str  # the paragraph before it
    line: int  # of its first line
    lines: list[str]


def section_of(text: str, heading: str) -> tuple[int, list[str]]:
    """The lines of a section with its subsections, and the number of the first; (0, []) where it is missing."""
    begin, level, found = 0, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        match = HEADING.match(line)
        if match and begin and len(match[1]) <= level:
            break
        if begin:
            found.append(line)
        elif match and match[2].lower() == heading.lower():
            begin, level = number + 1, len(match[1])
    return begin, found


def blocks_of(text: str, heading: str) -> list[Block]:
    begin, lines = section_of(text, heading)
    blocks: list[Block] = []
    paragraph: list[str] = []
    inside = fenced = False
    for number, line in enumerate(lines, start=begin):
        if line.startswith("```"):
            fenced = not fenced
            inside = False
        elif fenced or line.startswith("    "):
            if not inside:
                blocks.append(Block(" ".join(paragraph), number, []))
                paragraph = []
            inside = True
            blocks[-1].lines.append(line.strip())
        elif line.strip():
            if inside:
                paragraph = []
            inside = False
            paragraph.append(line.strip())
        elif not inside and paragraph and blocks_follow_not(lines, number - begin):
            paragraph = []
    return blocks


def blocks_follow_not(lines: list[str], blank: int) -> bool:
    """Whether what follows an empty line is a paragraph, so that the one before it belongs to no block."""
    following = next((line for line in lines[blank:] if line.strip()), "")
    return not following.startswith(("    ", "```"))


def layers_of(text: str, components: list[str]) -> list[list[str]]:
    layers = []
    for block in blocks_of(text, "Layers")[:1]:
        for line in block.lines:
            names = []
            for word in line.split():
                if word not in components:
                    break
                names.append(word)
            if names:
                layers.append(names)
    return layers


def rooms_of(text: str) -> dict[str, list[list[str]]]:
    """Folder -> lines of rooms; a room without its slash, "." for the files in none."""
    found = {}
    for block in blocks_of(text, "Rooms"):
        folder = FOLDER.search(block.before)
        if not folder:
            continue
        lines = []
        for line in block.lines:
            names = []
            for word in line.split():
                if not ROOM.fullmatch(word):
                    break
                names.append(word.rstrip("/") or ".")
            if names:
                lines.append(names)
        found[folder[0]] = lines
    return found


def ranks_of(lines: list[list[str]]) -> dict[str, int]:
    return {name: rank for rank, names in enumerate(lines) for name in names}


def upward(begin: str, end: str, ranks: dict[str, int]) -> bool:
    return begin != end and begin in ranks and end in ranks and ranks[end] <= ranks[begin]


def text_of(tree: Tree) -> str:
    page = tree.root / PAGE
    return page.read_text() if page.is_file() else ""


def against(include: Include, begin: str, end: str) -> Finding:
    return Finding(
        "upward include", f"{include.file}:{include.line}", f"{begin} includes {include.target}; {end} is not below it"
    )


def check_components(tree: Tree) -> list[Finding]:
    ranks = ranks_of(layers_of(text_of(tree), tree.components))
    findings = [
        Finding("order", PAGE, f'{name} is in no line of the block below "Layers"')
        for name in tree.components
        if name not in ranks
    ]
    for include in tree.includes:
        begin, end = tree.component_of(include.file), tree.component_of(include.target)
        if upward(begin, end, ranks):
            findings.append(against(include, begin, end))
    return findings


def room_of(file: str, folder: str, rooms: dict[str, int]) -> str:
    """The room of a file below a folder: the longest listed one that holds it, else its first folder, else "."."""
    below = posixpath.dirname(posixpath.relpath(file, folder)) or "."
    parts = below.split("/")
    for count in range(len(parts), 0, -1):
        candidate = "/".join(parts[:count])
        if candidate in rooms:
            return candidate
    return parts[0]


def check_rooms(tree: Tree) -> list[Finding]:
    rooms = rooms_of(text_of(tree))
    findings = []
    for component in tree.components:
        folder = f"{component}/src"
        if folder not in rooms and len(subfolders(tree.root / folder)) > 1:
            findings.append(Finding("order", PAGE, f'{folder} has rooms, but no block below "Rooms"'))
    for folder, lines in rooms.items():
        findings += check_folder(tree, folder, ranks_of(lines))
    return findings


def check_folder(tree: Tree, folder: str, rooms: dict[str, int]) -> list[Finding]:
    findings = [
        Finding("order", PAGE, f"{folder}/{room}/ does not exist")
        for room in rooms
        if not (tree.root / folder / room).is_dir()
    ]
    files = [file for files in tree.sources.values() for file in files if file.startswith(folder + "/")]
    for room in sorted({room_of(file, folder, rooms) for file in files} - rooms.keys()):
        shown = f"{folder}/{room}/" if room != "." else f"./, the files of {folder} in no room,"
        findings.append(Finding("order", PAGE, f'{shown} is in no line of its block below "Rooms"'))
    for include in tree.includes:
        if include.file.startswith(folder + "/") and include.target.startswith(folder + "/"):
            begin, end = room_of(include.file, folder, rooms), room_of(include.target, folder, rooms)
            if upward(begin, end, rooms):
                findings.append(against(include, f"{begin}/", f"{end}/"))
    return findings
