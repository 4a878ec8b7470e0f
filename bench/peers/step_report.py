"""The tables of step_peers.py, from the runs of each case."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from paired import MIB, quotients, summarize
from row_report import ratio_line, slices_line
from step_cases import Case, Side
from step_runs import Run

Runs = dict[str, list[Run]]  # of a case: ours, peer, again

LIMIT = 1.15  # of a step of ours to its busiest link
COMPARED_LOSSES = 10
# Equal weights, tokens and formulas are some 0.0005 apart, by what bf16 rounds. Other tokens, or
# a gradient that is not used, are ten times this.
LOSS_TOLERANCE = 0.01


def rows_of(runs: dict[Case, Runs], idle: dict[str, int], parameters: int) -> list[dict]:
    """As row_report.text_table takes them. `idle`: resident bytes, by program."""

    def speed(case: Case) -> dict:
        rates = {side: [run.tokens_per_second for run in of] for side, of in runs[case].items()}
        return slices_line(case.name, rates, case.speed, "tokens/s")

    def drive(case: Case) -> dict:
        moved = by_side(runs[case], lambda run, side: run.drive_bytes / parameters, case)
        return counted_line(case.name, moved, case.drive)

    def resident(case: Case) -> dict:
        def above_idle(run: Run, side: Side) -> float:
            return (run.peak_bytes - idle[side.program]) / parameters

        return counted_line(case.name, by_side(runs[case], above_idle, case), case.resident)

    lines = {
        "tokens a second": [speed(case) for case in runs],
        "drive, bytes of a parameter in a step": [
            drive(case) for case in runs if case.peer.optimizer == "nvme"
        ],
        "memory of the process above an idle one, bytes of a parameter": [resident(case) for case in runs],
    }
    rows = [{"title": title, "peer": "peer", "lines": of} for title, of in lines.items() if of]
    limits = limit_lines(runs)
    if limits:
        rows.append({"title": "a step of ours", "peer": "busiest link", "lines": limits})
    return rows


def by_side(runs: Runs, value: Callable[[Run, Side], float], case: Case) -> dict[str, list[float]]:
    sides = {"ours": case.ours, "peer": case.peer, "again": case.peer}
    return {name: [value(run, sides[name]) for run in of] for name, of in runs.items()}


def counted_line(name: str, values: dict[str, list[float]], at_most: float | None) -> dict:
    """Counts do not move as times do, so the bar is sharp, to the two digits that it has."""
    line = slices_line(name, values, None, "B")
    if at_most is not None:
        met = round(line["ratio"]["median"], 2) <= at_most
        line |= {"bar": at_most, "at_most": True, "met": met}
    return line


def limit_lines(runs: dict[Case, Runs]) -> list[dict]:
    """A step of each side of ours beside the seconds that its busiest link is busy."""
    by_side: dict[Side, list[Run]] = {}
    for case, of in runs.items():
        by_side.setdefault(case.ours, []).extend(of["ours"])
    lines = []
    for side, of in by_side.items():
        steps, links = [run.step_seconds for run in of], [run.busiest_seconds for run in of]
        if None in links:  # a loop in Python does not say
            continue
        medians = (1e3 * statistics.median(values) for values in (steps, links))
        ratio = summarize(quotients(steps, links))
        lines.append(ratio_line(str(side), *medians, "ms", ratio, LIMIT, at_most=True))
    return lines


def sides_table(runs: dict[Case, Runs], idle: dict[str, int], parameters: int) -> str:
    """Every side alone: medians over all of its runs."""
    by_side: dict[Side, list[Run]] = {}
    for case, of in runs.items():
        by_side.setdefault(case.ours, []).extend(of["ours"])
        by_side.setdefault(case.peer, []).extend(of["peer"] + of["again"])
    table = [
        ["each side", "s/step", "tokens/s", "read B/param", "written", "own count"]
        + ["peak MiB", "median", "at start", "idle process", "above it B/param"]
    ]
    for side, of in by_side.items():
        table.append([str(side), *side_cells(of, idle[side.program], parameters)])
    widths = [max(map(len, column)) for column in zip(*table)]
    ways = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    return "\n".join(
        "  ".join(way(cell, width) for way, cell, width in zip(ways, line, widths))
        for line in table
    )


def side_cells(runs: list[Run], idle: int, parameters: int) -> list[str]:
    def median(field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs)

    own_count = ""
    if runs[0].counted_bytes is not None:
        own_count = f"{median('counted_bytes') / parameters:.2f}"
    residents = ("peak_bytes", "resident_bytes", "start_peak_bytes")
    return [
        f"{median('step_seconds'):.3f}",
        f"{median('tokens_per_second'):,.0f}",
        *(f"{median(field) / parameters:.2f}" for field in ("read_bytes", "written_bytes")),
        own_count,
        *(f"{median(field) / MIB:,.0f}" for field in residents),
        f"{idle / MIB:,.0f}",
        f"{(median('peak_bytes') - idle) / parameters:.1f}",
    ]


def loss_difference(runs: Runs) -> float:
    """The largest one between ours and the peer's in the first steps, of the peer's."""
    return max(abs(ours - peer) / peer for ours, peer in first_losses(runs))


def loss_text(case: Case, runs: Runs) -> str:
    pairs, difference = first_losses(runs), loss_difference(runs)
    verdict = "the same work" if difference <= LOSS_TOLERANCE else "NOT the same work"
    (first, peers_first), (last, peers_last) = pairs[0], pairs[-1]
    losses = f"{first:.4f} to {last:.4f}, the peer's {peers_first:.4f} to {peers_last:.4f}"
    apart = f"{100 * difference:.3f} % apart at most"
    return f"{case}: losses of {len(pairs)} steps {losses}, {apart}: {verdict}"


def first_losses(runs: Runs) -> list[tuple[float, float]]:
    ours, peer = runs["ours"][0].losses, runs["peer"][0].losses
    return list(zip(ours, peer))[:COMPARED_LOSSES]
