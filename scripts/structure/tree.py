"""The components of a tree, their source files and the includes between them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

SOURCE_SUFFIXES = (".cpp", ".hpp", ".c", ".h", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


class Finding(NamedTuple):
    rule: str
    place: str  # file, file:line or folder
    text: str


class Include(NamedTuple):
    file: str
    line: int
    target: str


def subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())


def is_component(folder: Path) -> bool:
    return (folder / "CMakeLists.txt").is_file() and any((folder / part).is_dir() for part in ("src", "include"))


def components_of(root: Path) -> list[str]:
    """Folders with a CMakeLists.txt beside src/ or include/, at the top of the tree or in engine/."""
    names = subfolders(root) + [f"engine/{name}" for name in subfolders(root / "engine")]
    return [name for name in names if not hidden(name) and is_component(root / name)]


def hidden(name: str) -> bool:
    return name.startswith((".", "build", "sluice-test-")) or name == "__pycache__"


def files_below(root: Path, folder: str) -> list[str]:
    """All files below a folder, relative to the root, without build trees and hidden folders."""
    found = []
    for path, folders, files in os.walk(root / folder):
        folders[:] = sorted(name for name in folders if not hidden(name))
        found += [os.path.relpath(os.path.join(path, name), root) for name in sorted(files)]
    return found


def component_of(file: str, components: list[str]) -> str:
    return next((name for name in components if file.startswith(name + "/")), "")


class Tree:
    """Reads the sources of all components once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.components = components_of(root)
        self.sources = {
            name: [file for part in ("include", "src") for file in source_files(root, f"{name}/{part}")]
            for name in self.components
        }
        self.includes: list[Include] = []
        self.findings: list[Finding] = []
        for name, files in self.sources.items():
            for file in files:
                self._read(name, file)

    def component_of(self, file: str) -> str:
        return component_of(file, self.components)

    def includes_within(self, component: str) -> list[Include]:
        mine = set(self.sources[component])
        return [include for include in self.includes if include.file in mine and include.target in mine]

    def _read(self, component: str, file: str) -> None:
        text = (self.root / file).read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            match = INCLUDE.match(line)
            if not match:
                continue
            target = self._resolve(component, file, match[2])
            if target:
                self.includes.append(Include(file, number, target))
            elif match[1] == '"':
                self.findings.append(Finding("include not found", f"{file}:{number}", f'"{match[2]}" is no file of the tree'))

    def _resolve(self, component: str, file: str, written: str) -> str:
        """The file of the tree that an include names; empty for headers from elsewhere."""
        folders = [os.path.dirname(file), f"{component}/src"] + [f"{name}/include" for name in self.components]
        for folder in folders:
            target = os.path.normpath(os.path.join(folder, written))
            if not target.startswith("..") and (self.root / target).is_file():
                return target
        return ""


def source_files(root: Path, folder: str) -> list[str]:
    return [file for file in files_below(root, folder) if file.endswith(SOURCE_SUFFIXES)]
