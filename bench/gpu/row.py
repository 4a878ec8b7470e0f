"""A row that is being measured: its tables, what is missing of it and why, and its time.

All of it is written after every figure, so that a row that is killed keeps what it had.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from paired import ending, few, quotients
from row_report import ratio_line, slices_line, text_table

REPOSITORY = Path(__file__).resolve().parent.parent.parent


class Failed(Exception):
    """A program that did not do what was asked, with what it said last."""


@dataclass(frozen=True)
class Place:
    """Where things are, and how programs are started."""

    binaries: Path
    drive: Path  # a folder of our own on the drive that is measured
    environment: dict[str, str]
    rehearsal: bool
    gpu: bool
    outer_library_path: str  # LD_LIBRARY_PATH as it was
    host_bytes: int | None  # the budget of a row that wants all host memory; None: what is free
    cases: tuple[str, ...] = ()  # parts of names, of rows 3 and 10; none: all cases

    def wants(self, case: object) -> bool:
        return not self.cases or any(part in str(case) for part in self.cases)

    @property
    def device(self) -> str:
        return "cuda" if self.gpu else "host"

    def program(self, name: str) -> str:
        return str(self.binaries / name)

    def shown_names(self) -> dict[str, str]:
        """Folders of this machine, by what a result calls them."""
        names = {str(self.drive): "DIR", str(self.binaries): "bin", sys.executable: "python3"}
        return names | {f"{REPOSITORY}/": ""}

    def pick(self, measured, rehearsed):
        return rehearsed if self.rehearsal else measured


@dataclass
class Row:
    place: Place
    path: Path  # of the unfinished result
    deadline: float  # of time.monotonic()
    facts: dict
    tables: list[dict] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    values: dict = field(default_factory=dict)

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def table(self, title: str, peer: str = "-") -> list[dict]:
        """Lines of a new table; call save() when one was added."""
        lines: list[dict] = []
        self.tables.append({"title": title, "peer": peer, "lines": lines})
        return lines

    def lacks(self, what: str) -> None:
        print(f"missing: {what}", flush=True)
        if what not in self.missing:
            self.missing.append(what)
        self.save()

    def save(self) -> None:
        document = {
            "tables": [table for table in self.tables if table["lines"]],
            "missing": self.missing,
            "commands": self.commands,
            "values": self.values,
            "facts": self.facts,
        }
        text = json.dumps(document, indent=2)
        for folder, shown in self.place.shown_names().items():
            text = text.replace(folder, shown)
        write_whole(self.path, text)

    def show(self) -> None:
        for table in self.tables:
            if table["lines"]:
                print(text_table(table), end="\n\n", flush=True)

    def output_of(self, line: list[str], **environment: str) -> str:
        """Output of a program. Throws Failed, also when the row's time is up."""
        command = shlex.join(line)
        self.commands.append(command)
        print(f"$ {command}", flush=True)
        try:
            done = subprocess.run(
                line,
                capture_output=True,
                text=True,
                env={**self.place.environment, **environment},
                timeout=max(1.0, self.seconds_left()),
            )
        except FileNotFoundError:
            raise Failed(f"{line[0]} is not there") from None
        except subprocess.TimeoutExpired:
            raise Failed(f"{Path(line[0]).name} was ended: the row's time is up") from None
        if done.returncode != 0:
            raise Failed(f"{Path(line[0]).name}: {ending(done.returncode)}: {last(done.stderr)}")
        return done.stdout


def write_json(path: Path, document: dict) -> None:
    write_whole(path, json.dumps(document, indent=2))


def read_result(path: Path) -> dict:
    """Reads a result of write_json(); ends the program for any other file."""
    try:
        document = json.loads(path.read_text())
        if {"state", "rehearsal"} <= document.keys():
            return document
    except (ValueError, AttributeError):
        pass
    sys.exit(f"{path}: not a result of scripts/gpu_check.sh; move it away")


def write_whole(path: Path, text: str) -> None:
    """Under another name first, so that what is there is whole."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text + "\n")
    os.replace(unfinished, path)


def last(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-4:])[-1500:] or "it said nothing"


def few_line(
    case: str, sides: dict[str, list[float]], unit: str, bar: float | None, **more
) -> dict:
    """slices_line() for few runs: ours, the peer's, and perhaps the peer's again."""
    if again := sides.get("again"):
        more["control"] = few(quotients(again, sides["peer"]))
    ours, peer = sides["ours"], sides["peer"]
    medians = (statistics.median(of) for of in (ours, peer))
    more["slices"] = sides
    return ratio_line(case, *medians, unit, few(quotients(ours, peer)), bar, **more)


def many_line(case: str, sides: dict[str, list[float]], unit: str, bar: float | None) -> dict:
    """Line for the three sides that copy_bench and swap_bench print."""
    return slices_line(case, {side: sides[side] for side in ("ours", "peer", "again")}, bar, unit)


def figure(case: str, ours: float, unit: str, **more) -> dict:
    return {"case": case, "ours": ours, "unit": unit, **more}


def at_least(case: str, ours: float, unit: str, bar: float, **more) -> dict:
    return figure(case, ours, unit, bar=bar, met=ours >= bar, **more)


def at_most(case: str, ours: float, unit: str, bar: float, **more) -> dict:
    return figure(case, ours, unit, bar=bar, at_most=True, met=ours <= bar, **more)
