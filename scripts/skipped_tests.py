#!/usr/bin/env python3
"""Prints how many tests of a run were skipped, and why; no skip is silent.

scripts/skipped_tests.py NAME RESULTS BUILD. RESULTS holds ctest.xml (ctest --output-junit) and gtest/ (the XML files that
GTEST_OUTPUT=xml:RESULTS/gtest/ makes GoogleTest programs write); BUILD holds tests_left_out.txt, the tests that were not
built, with the reason. Fails when RESULTS has no tests.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import NamedTuple

MOST_NAMES = 3
# GoogleTest writes "FILE:LINE\nREASON".
PLACE = re.compile(r"^\S+:\d+\n")


class Result(NamedTuple):
    name: str
    reason: str | None  # why it was skipped


def skip_reason(case: xml.Element) -> str | None:
    skipped = case.find("skipped")
    if skipped is not None:
        text = skipped.get("message") or skipped.text or "without a reason"
        return " ".join(PLACE.sub("", text.strip()).split())
    if case.get("status") in ("notrun", "disabled"):
        return "disabled" if "DISABLED_" in case.get("name", "") or case.get("status") == "disabled" else "not run"
    return None


def results_of(file: Path) -> list[Result]:
    cases = xml.parse(file).getroot().iter("testcase")
    found = []
    for case in cases:
        suite = case.get("classname", "")
        name = case.get("name", "")
        found.append(Result(name if suite in ("", name) else f"{suite}.{name}", skip_reason(case)))
    return found


def all_results(folder: Path) -> list[Result]:
    """Tests of GoogleTest programs one by one, and the other tests of ctest."""
    programs = {re.sub(r"_\d+$", "", file.stem): file for file in sorted((folder / "gtest").glob("*.xml"), reverse=True)}
    found = [result for file in programs.values() for result in results_of(file)]
    return found + [result for result in results_of(folder / "ctest.xml") if result.name not in programs]


def names_text(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def report(name: str, results: list[Result], left_out: list[str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for result in results:
        if result.reason is not None:
            by_reason.setdefault(result.reason, []).append(result.name)
    skipped = sum(map(len, by_reason.values()))
    lines = [f"{name}: {len(results)} tests, {skipped} skipped"]
    for reason, names in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        lines.append(f"  {len(names):4}  {reason} ({names_text(names)})")
    lines += [f"     -  not built: {line}" for line in left_out]
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    name, folder, build = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if not (folder / "ctest.xml").is_file():
        print(f"{name}: {folder} has no ctest.xml; its skipped tests are unknown", file=sys.stderr)
        return 1
    results = all_results(folder)
    left_out_file = build / "tests_left_out.txt"
    left_out = left_out_file.read_text().splitlines() if left_out_file.is_file() else []
    print(report(name, results, left_out))
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
