"""Results of bench/gpu_rows.py as Markdown, for docs/benchmarks.md."""

from __future__ import annotations

import sys
from pathlib import Path

from row_report import cells, markdown_line, notes

from gpu.machine import facts_text
from gpu.row import read_result


def markdown(folder: Path) -> str:
    """Exits where there is nothing, or where a result is a rehearsal: its figures say nothing."""
    paths = sorted(folder.glob("row-[0-9].json")) + sorted(folder.glob("row-[0-9][0-9].json"))
    if not paths:
        sys.exit(f"{folder}: no row-N.json of scripts/gpu_check.sh")
    documents = [read_result(path) for path in paths]
    rehearsals = [path.name for path, one in zip(paths, documents) if one["rehearsal"]]
    if rehearsals:
        sys.exit(f"{', '.join(rehearsals)}: a rehearsal, not a result; nothing is printed")
    tests = folder / "tests.json"
    parts = [tests_text(read_result(tests))] if tests.exists() else []
    return "\n\n".join([*parts, *map(row_text, documents)])


def row_text(document: dict) -> str:
    facts = document["facts"]
    parts = [f"### {document['title']}", f"{facts_text(facts)}."]
    if document["state"] != "finished":
        parts.append(f"Not to its end: {document['state']}, {document['why']}.")
    for table in document["tables"]:
        parts += [f"{table['title'][0].upper()}{table['title'][1:]}:", table_text(table)]
    if document["missing"]:
        parts.append("\n".join(f"- missing: {text}" for text in document["missing"]))
    parts.append(f"{facts['date']}, commit {facts['commit']}, `{document['command']}`.")
    return "\n\n".join(parts)


def table_text(table: dict) -> str:
    header, *lines = cells(table)
    text = [markdown_line(header), "|" + "---|" * len(header), *map(markdown_line, lines)]
    said = notes(table)
    return "\n".join([*text, *[""] * bool(said), *(f"- {note}" for note in said)])


def tests_text(document: dict) -> str:
    if document["rehearsal"]:
        sys.exit("tests.json: a rehearsal, not a result; nothing is printed")
    lines = ["| program | passed | failed | skipped |", "|---|---|---|---|"]
    for one in document["programs"]:
        lines.append(
            f"| {one['name']} | {one['passed']} | {len(one['failed'])} | {len(one['skipped'])} |"
        )
    return "### Tests on the GPU\n\n" + "\n".join(lines)
