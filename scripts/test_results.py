#!/usr/bin/env python3
"""Prints which tests of a run failed, with the end of what they wrote, and which were skipped, and why.

scripts/test_results.py NAME RESULTS BUILD. RESULTS holds ctest.xml (ctest --output-junit) and gtest/ (the XML files that
GTEST_OUTPUT=xml:RESULTS/gtest/ makes GoogleTest programs write); BUILD holds tests_left_out.txt, the tests that were not
built, with the reason. Exits with 1 when a test failed or there are none; a file that cannot be read is a failed test.
"""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import NamedTuple

MOST_NAMES = 3
# Lines shown of a failed test's output, from its end.
LAST_LINES = 25
# GoogleTest writes "FILE:LINE\nREASON".
PLACE = re.compile(r"^\S+:\d+\n")


class Result(NamedTuple):
    name: str
    reason: str | None  # why it was skipped
    failure: str | None = None  # what it wrote, where it failed


def skip_reason(case: xml.Element) -> str | None:
    skipped = case.find("skipped")
    if skipped is not None:
        text = skipped.get("message") or skipped.text or "without a reason"
        return " ".join(PLACE.sub("", text.strip()).split())
    if case.get("status") in ("notrun", "disabled"):
        return "disabled" if "DISABLED_" in case.get("name", "") or case.get("status") == "disabled" else "not run"
    return None


def failure_text(case: xml.Element) -> str | None:
    """ctest writes a program's output beside the failure; pytest and GoogleTest write text into it."""
    failures = [*case.iterfind("failure"), *case.iterfind("error")]
    if not failures:
        return None
    texts = [case.findtext("system-out", ""), *((failure.text or "").strip() or failure.get("message", "") for failure in failures)]
    return "\n".join(text.strip() for text in texts if text.strip())


def results_of(file: Path) -> list[Result]:
    try:
        cases = xml.parse(file).getroot().iter("testcase")
    except (OSError, xml.ParseError) as error:
        why = f"{file} cannot be read: {error}; did two processes write it, or was one killed while it wrote?"
        return [Result(file.stem, None, why)]
    found = []
    for case in cases:
        suite = case.get("classname", "")
        name = case.get("name", "")
        full_name = name if suite in ("", name) else f"{suite}.{name}"
        found.append(Result(full_name, skip_reason(case), failure_text(case)))
    return found


def all_results(folder: Path) -> list[Result]:
    """Tests of GoogleTest programs one by one, the other tests of ctest, and programs that failed outside their tests."""
    programs = {re.sub(r"_\d+$", "", file.stem): file for file in sorted((folder / "gtest").glob("*.xml"), reverse=True)}
    by_program = {name: results_of(file) for name, file in programs.items()}
    explained = {name for name, results in by_program.items() if any(result.failure is not None for result in results)}
    found = [result for results in by_program.values() for result in results]
    for result in results_of(folder / "ctest.xml"):
        if result.name not in programs or (result.failure is not None and result.name not in explained):
            found.append(result)
    return found


def names_text(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def report(name: str, results: list[Result], left_out: list[str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for result in results:
        if result.reason is not None:
            by_reason.setdefault(result.reason, []).append(result.name)
    failed = [(result.name, result.failure) for result in results if result.failure is not None]
    skipped = sum(map(len, by_reason.values()))
    lines = [f"{name}: {len(results)} tests, {len(failed)} failed, {skipped} skipped"]
    for test, text in failed:
        lines += [f"  FAILED {test}", *(f"    | {line}" for line in text.splitlines()[-LAST_LINES:])]
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
        print(f"{name}: {folder} has no ctest.xml; its results are unknown", file=sys.stderr)
        return 1
    results = all_results(folder)
    left_out_file = build / "tests_left_out.txt"
    left_out = left_out_file.read_text().splitlines() if left_out_file.is_file() else []
    print(report(name, results, left_out))
    return 1 if not results or any(result.failure is not None for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
