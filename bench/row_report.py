"""Lines of a report: whether a bar is met, and the tables, as text and as Markdown."""

from __future__ import annotations

import shlex
import statistics

from paired import quotients, span, summarize

TOLERANCE = 0.05  # a median so close to its bar is the drive's noise
DIGITS = {
    "GB/s": 2,
    "IOPS": 0,
    "Gparam/s": 3,
    "tokens/s": 0,
    "TFLOP/s": 1,
    "s/GiB": 4,
    "s/step": 3,
    "s": 1,
    "ms": 1,
    "instr": 0,
    "steps": 0,
    "B": 2,
    "MiB": 1,
    "G": 2,
    "%": 1,
}
MEASURED_WHERE = ("cpu", "cpus", "memory_GiB", "kernel", "file_system", "drive", "fio", "sluice")


def value_line(case: str, ours: float, unit: str, at_most: float | None = None, **more) -> dict:
    """A figure without a peer."""
    line = {"case": case, "ours": ours, "unit": unit, **more}
    if at_most is not None:
        line |= {"bar": at_most, "at_most": True, "met": ours <= at_most}
    return line


def ratio_line(
    case: str, ours: float, peer: float, unit: str, ratio: dict, bar: float | None = None, **more
) -> dict:
    line = {"case": case, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio, **more}
    if bar is not None:
        line |= {"bar": bar, "met": is_met(ratio, bar, more.get("at_most", False))}
    return line


def slices_line(
    case: str, rates: dict[str, list[float]], bar: float | None, unit: str = "GB/s", **more
) -> dict:
    """Line for a case of alternate(): ours, the peer's, and the peer's again."""
    ours, peer, again = rates.values()
    ratio, control = summarize(quotients(ours, peer)), summarize(quotients(again, peer))
    ours_median, peer_median = statistics.median(ours), statistics.median(peer)
    more |= {"control": control, "slices": rates}
    return ratio_line(case, ours_median, peer_median, unit, ratio, bar, **more)


def calls_line(
    case: str, ours: list[dict], key: str, unit: str, bar: float | None, command: list[str]
) -> dict:
    """Line for the results of several calls of `sluice nvme bench --fio`."""
    fio = [call["fio"] for call in ours]
    ratios = [ratio for one in fio for ratio in one["ratio"]["all"]]
    controls = [ratio for one in fio for ratio in one["control"]["all"]]
    sides = {"ours": ours, "peer": fio}
    medians = (statistics.median(one[key] for one in side) for side in sides.values())
    more = {
        "control": summarize(controls),
        "cpu_s_per_GiB": {of: [one["cpu_s_per_GiB"] for one in side] for of, side in sides.items()},
        "commands": [shlex.join(command)],
    }
    return ratio_line(case, *medians, unit, summarize(ratios), bar, **more)


def scaled(summary: dict, factor: float) -> dict:
    return {
        name: [factor * one for one in value] if isinstance(value, list) else factor * value
        for name, value in summary.items()
    }


def is_met(ratio: dict, bar: float, at_most: bool) -> bool:
    low, high = ends(ratio)
    if at_most:
        return ratio["median"] <= bar + TOLERANCE and low <= bar
    return ratio["median"] >= bar - TOLERANCE and high >= bar


def ends(ratio: dict) -> list[float]:
    # Few runs have no interval worth the name: their range then.
    return ratio["interval90"] if "interval90" in ratio else ratio["range"]


def cells(row: dict) -> list[list[str]]:
    """The header and a list for each line; columns in which nothing stands are left out."""
    interval = "90 % interval"
    if any("range" in line.get("ratio", {}) for line in row["lines"]):
        interval = "range"
    header = ["case", "sluice", row["peer"], "unit", "ratio", "quartiles", interval, "control"]
    table = [[*header, interval, "bar", ""]] + [cells_of(line) for line in row["lines"]]
    kept = [any(column[1:]) for column in zip(*table)]
    return [[cell for cell, keep in zip(line, kept) if keep] for line in table]


def cells_of(line: dict) -> list[str]:
    texts = [line["case"], figure(line, "ours"), figure(line, "peer"), line["unit"]]
    ratio, control = line.get("ratio"), line.get("control")
    texts += [median_text(ratio), span(ratio["quartiles"]) if ratio else "", ends_text(ratio)]
    texts += [median_text(control), ends_text(control)]
    if "bar" not in line:
        return [*texts, "", ""]
    sign, digits = "<=" if line.get("at_most") else ">=", 2 if ratio else DIGITS[line["unit"]]
    return [*texts, f"{sign} {line['bar']:.{digits}f}", verdict(line)]


def verdict(line: dict) -> str:
    """met: the median is at the bar or better. within noise: the interval reaches the bar. short: neither."""
    if not line["met"]:
        return "short"
    median, bar = line["ratio"]["median"] if "ratio" in line else line["ours"], line["bar"]
    at_bar = median <= bar if line.get("at_most") else median >= bar
    return "met" if at_bar else "within noise"


def median_text(summary: dict | None) -> str:
    return f"{summary['median']:.3f}" if summary else ""


def ends_text(summary: dict | None) -> str:
    return span(ends(summary)) if summary else ""


def figure(line: dict, side: str) -> str:
    return f"{line[side]:,.{DIGITS[line['unit']]}f}" if side in line else ""


def text_table(row: dict) -> str:
    table = cells(row)
    widths = [max(map(len, column)) for column in zip(*table)]
    numbers = {"sluice", row["peer"], "ratio", "control"}  # they line up at the right
    justify = [str.rjust if name in numbers else str.ljust for name in table[0]]
    lines = [
        "  ".join(to_side(cell, width) for to_side, cell, width in zip(justify, line, widths))
        for line in table
    ]
    return "\n".join([row["title"], *(line.rstrip() for line in lines), *notes(row)])


def notes(row: dict) -> list[str]:
    return [f"{line['case']}: {line['note']}" for line in row["lines"] if line.get("note")]


def markdown(rows: dict) -> str:
    """The tables under the marker lines that docs/benchmarks.md has for them."""
    parts = []
    where = ""
    for name, row in rows.items():
        facts = row["facts"]
        if (text := facts_text(facts)) != where:
            parts += [text, ""]
            where = text
        header, *lines = cells(row)
        parts += [f"<!-- nvme_rows: {name} -->", "", markdown_line(header)]
        parts += ["|" + "---|" * len(header), *map(markdown_line, lines), ""]
        parts += [f"- {note}" for note in notes(row)] + [""] * bool(notes(row))
        load = " to ".join(f"{average:.2f}" for average in facts["load_average"])
        parts += [f"{facts['date']}, commit {facts['commit'][:12]}, load average {load}.", ""]
    return "\n".join(parts)


def markdown_line(texts: list[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def facts_text(facts: dict) -> str:
    labels = {"cpus": "cores: {}", "memory_GiB": "{} GiB of memory", "kernel": "Linux {}"}
    labels["drive"] = "drive: {}"
    return ", ".join(labels.get(key, "{}").format(facts[key]) for key in MEASURED_WHERE) + "."
