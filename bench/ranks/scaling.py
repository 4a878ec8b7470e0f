"""Weak scaling: two ranks on two cores, beside two processes of one rank that know nothing of each other."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from paired import Progress
from ranks.runs import Bench, Case, Failed, on_drive
from row_report import slices_line, value_line
from rounds import Steps as Turns
from rounds import alternate

BAR = 0.95
RANKS = 2


def scaling(bench: Bench, case: Case, arguments: argparse.Namespace, progress: Progress) -> list[dict]:
    """Tokens a second of all ranks, in alternating runs. The processes update all states each, a rank its half."""
    if len(bench.cores) < RANKS:
        raise Failed(f"this process may use {len(bench.cores)} core, and weak scaling needs {RANKS}")
    cases = [replace(case, accumulation=2), on_drive(replace(case, accumulation=2))]

    def together(of: Case) -> float:
        return RANKS * of.tokens / bench.ranks(of, RANKS).median

    def apart(of: Case) -> float:
        return sum(of.tokens / one.median for one in bench.alone(of, RANKS))

    def single(of: Case) -> float:
        return of.tokens / bench.alone(of, 1)[0].median

    sides = {
        of: {
            "ours": lambda of=of: together(of),
            "peer": lambda of=of: apart(of),
            "again": lambda of=of: apart(of),
            "single": lambda of=of: single(of),
        }
        for of in cases
    }
    rates = alternate(sides, arguments.rounds, Turns(progress, "scaling"))
    lines = []
    for of in cases:
        alone = rates[of].pop("single")
        lines.append(slices_line(str(of), rates[of], BAR, "tokens/s"))
        lines.append(value_line("one rank, the other core idle", statistics.median(alone), "tokens/s"))
    return [{"title": "tokens/s of two ranks, a core each", "peer": "two processes", "lines": lines}]
