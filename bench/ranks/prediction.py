"""The formulas of `sluice plan --ranks` beside the steps of 1, 2 and 4 ranks of this machine."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from dataclasses import replace

from paired import Progress, summarize
from ranks.runs import Bench, Case, Failed, on_drive
from row_report import ratio_line, value_line
from rounds import Steps as Turns
from rounds import alternate

COUNTS = (1, 2, 4)
LEAST, MOST = 0.8, 1.2
MIB_OF_A_UNIT = 4  # of the collective that gives the network's rate


def prediction(bench: Bench, case: Case, arguments: argparse.Namespace, progress: Progress) -> list[dict]:
    """Rates by --probe on one rank, the network's by collective_bench on two."""
    cases = [replace(case, one_core=False), on_drive(replace(case, one_core=False))]
    progress.show("prediction: the rate between two ranks")
    network = network_rate(bench)
    lines = [value_line("between two ranks", network / 1e9, "GB/s")]
    sides: dict = {}
    for of in cases:
        sides[of] = {count: lambda of=of, count=count: bench.ranks(of, count).median for count in COUNTS}
        sides[of]["plan"] = lambda of=of: predicted(bench, of, network)
    turns = alternate(sides, arguments.rounds, Turns(progress, "prediction"))
    for of in cases:
        plans = turns[of].pop("plan")
        for count in COUNTS:
            expected = [plan[count] for plan in plans]
            ratios = [step / plan for step, plan in zip(turns[of][count], expected)]
            medians = (statistics.median(turns[of][count]), statistics.median(expected))
            line = ratio_line(f"{count} ranks, {of}", *medians, "s/step", summarize(ratios))
            met = LEAST <= line["ratio"]["median"] <= MOST
            lines.append(line | {"bar": MOST, "at_most": True, "met": met, "slices": turns[of][count]})
    title = "seconds of a step, measured beside planned, within 20 %"
    return [{"title": title, "peer": "plan", "lines": lines}]


def predicted(bench: Bench, case: Case, network: float) -> dict[int, float]:
    """Seconds of a step, by ranks, with this machine's rates of this moment."""
    train = bench.arguments(case, "plan")
    program, files = train[0], train[2:6]
    rates = ["--rates", str(bench.folder / "rates.json")]
    counts = ["--ranks", ",".join(map(str, COUNTS)), "--ranks-per-host", str(max(COUNTS))]
    text = bench.run([program, "plan", *files, *rates, *counts, "--network", f"{network / 1e9:.3f}GB/s", "--probe", "--json"])
    answer = json.loads(text)
    if not any("measured" in line for line in answer["assumptions"]):
        raise Failed("sluice plan --ranks took no measured rates: " + "; ".join(answer["assumptions"]))
    return {plan["ranks"]: plan["step_seconds"] for plan in answer["plans"]}


def network_rate(bench: Bench) -> float:
    """Bytes a second that each of two ranks receives in an all-gather."""
    line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
    line += [str(bench.binaries / "collective_bench"), "5", str(MIB_OF_A_UNIT)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"collective_bench failed: {done.stderr.strip()[-2000:]}")
    for text in done.stdout.splitlines():
        result = json.loads(text)
        if result["operation"] == "all_gather" and result["ranks"] == "processes":
            return statistics.median(result["slices"]["ours"]) * 1e9
    raise Failed("collective_bench printed no all_gather")
