"""Two hosts on a slow link: the step beside compute alone and communication alone, and the link that is cut."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from dataclasses import replace

from paired import Progress, summarize
from ranks.network import TwoHosts
from ranks.runs import Bench, Case, Failed
from row_report import ratio_line, value_line
from rounds import Steps as Turns
from rounds import alternate

BAR = 1.15
SILENCE = 10  # seconds without a word, after which a rank is given up
CUT_SECONDS = 60.0
RANKS = 2


def hosts(bench: Bench, case: Case, arguments: argparse.Namespace, progress: Progress) -> list[dict]:
    """Compute alone: this machine's two ranks, MPI through shared memory, less their waits for the network.
    Communication alone: the bytes that a rank sends, over the rate of the link with both directions at work.

    A rank has one core, and TCP's own work takes a part of it. One line says how much: the step without a link, while a
    bare stream fills the link."""
    if os.geteuid() != 0:
        raise Failed("network namespaces are made by root: start this row as root")
    if len(bench.cores) < RANKS:
        raise Failed(f"this process may use {len(bench.cores)} core, and {RANKS} hosts need one each")
    with TwoHosts(bench.folder, arguments.link, bench.cores) as link:
        lines = []
        lighter = replace(case, micro_batch=1)  # the link is busy longer than the cores
        for of in (lighter, case, replace(case, accumulation=4), replace(case, stage=2, accumulation=2)):
            lines += step_lines(bench, link, of, arguments, progress)
        lines += cut_lines(bench, link, case)
    return [{"title": f"a step of two hosts, {arguments.link}", "peer": "larger of both alone", "lines": lines}]


def step_lines(
    bench: Bench, link: TwoHosts, case: Case, arguments: argparse.Namespace, progress: Progress
) -> list[dict]:
    def over_link():
        bench.run(link.ranks_line(bench.arguments(case, "hosts")))
        return bench.steps(case, "hosts")

    def beside_a_stream():
        with link.filled():
            return bench.ranks(case, RANKS)

    sides = {
        "step": over_link,
        "local": lambda: bench.ranks(case, RANKS),
        "rate": link.bytes_per_second,
        "beside": beside_a_stream,
    }
    turns = alternate({str(case): sides}, arguments.rounds, Turns(progress, "hosts"))[str(case)]
    steps = [one.median for one in turns["step"]]
    # Medians of two columns: in steps of some milliseconds the waits may be the larger one.
    compute = [max(0.0, one.median - one.number("stall_seconds.network")) for one in turns["local"]]
    sent = [one.number("network_sent_bytes_per_step") for one in turns["step"]]
    network = [count / rate for count, rate in zip(sent, turns["rate"])]
    bounds = [max(pair) for pair in zip(compute, network)]
    # The part of a core that TCP takes while the link is full. Compute goes on with the rest.
    taken = [max(0.0, 1 - local.median / beside.median) for local, beside in zip(turns["local"], turns["beside"])]
    loaded = [max(alone + link_busy * part, link_busy) for alone, link_busy, part in zip(compute, network, taken)]
    slices = {"steps": steps, "compute": compute, "network": network, "sent_bytes": sent, "core_of_tcp": taken}

    def ratio(name: str, bound: list[float], bar: float | None, **more) -> dict:
        ratios = summarize([step / each for step, each in zip(steps, bound)])
        return ratio_line(name, statistics.median(steps), statistics.median(bound), "s/step", ratios, bar, **more)

    return [
        ratio(str(case), bounds, BAR, at_most=True, slices=slices),
        ratio("  with TCP's part of the core in compute", loaded, None),
        value_line("  compute alone", statistics.median(compute), "s/step"),
        value_line("  communication alone", statistics.median(network), "s/step"),
        value_line("  step without a link", statistics.median(one.median for one in turns["local"]), "s/step"),
        value_line("  step without a link, beside a bare stream", statistics.median(one.median for one in turns["beside"]), "s/step"),
    ]


def cut_lines(bench: Bench, link: TwoHosts, case: Case) -> list[dict]:
    """The link is cut after a few steps. The run must end by itself and name the rank that is away."""
    endless = replace(case, steps=100000)
    steps = bench.folder / "cut.report" / "steps.jsonl"
    line = link.ranks_line(["env", f"SLUICE_RANK_TIMEOUT={SILENCE}", *bench.arguments(endless, "cut")])
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        deadline = time.monotonic() + 120
        while not (steps.exists() and len(steps.read_text().splitlines()) >= 3):
            if run.poll() is not None or time.monotonic() > deadline:
                run.kill()
                raise Failed("no step was made before the cut: " + run.communicate()[0][-2000:])
            time.sleep(0.1)
        link.cut()
        begin = time.monotonic()
        try:
            text = run.communicate(timeout=CUT_SECONDS + 30)[0]
        except subprocess.TimeoutExpired:
            run.kill()
            raise Failed(f"the run goes on {CUT_SECONDS + 30:.0f} s after the link was cut") from None
        seconds = time.monotonic() - begin
    said = [each for each in text.splitlines() if "rank 1" in each]
    if run.returncode == 0 or not said:
        raise Failed(f"the link was cut; exit code {run.returncode}, no word of rank 1: {text[-2000:]}")
    case_name = f"the link is cut: exit code {run.returncode}, seconds to the end"
    return [value_line(case_name, seconds, "s", CUT_SECONDS, said=said)]
