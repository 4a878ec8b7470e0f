"""Counts the instructions that the engine runs for each request, with callgrind."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable

from drive_sides import run

SECONDS = (1, 3)
# Counted functions, with inclusive costs: the engine's thread, and the calls of its users.
COUNTED = {
    "thread": "sluice::nvme::DriveQueue::run()",
    "begin": "sluice::nvme::IoEngine::begin_reads(",
    "finish": "sluice::Ticket::finish()",
}


def instructions_of(bench_line: Callable[..., list[str]]) -> dict:
    """A long run less a short one, so that the start of the program cancels out."""
    more: Counter = Counter()
    for seconds, sign in zip(SECONDS, (-1, 1)):
        line = bench_line("--seconds", seconds)
        counts = counts_of(line, seconds + 30)
        if counts is None:
            return {"note": "valgrind gets stuck on this backend"}
        more.update({name: sign * count for name, count in counts.items()})
    thread, begin, finish, program = (more[of] / more["requests"] for of in (*COUNTED, "program"))
    return {
        "ours": thread + begin + finish,
        "note": f"its thread {thread:.0f}, calls of it {begin + finish:.1f}; program {program:.0f}",
        "commands": [shlex.join(["valgrind", "--tool=callgrind", *line])],
    }


def counts_of(line: list[str], timeout: float) -> Counter | None:
    """None where valgrind gets stuck: 3.19 holds its lock while a thread waits in io_uring_enter,
    and no other thread gets on."""
    with tempfile.TemporaryDirectory() as scratch:
        out = f"{scratch}/callgrind.out"
        traced = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *line]
        try:
            done = subprocess.run(traced, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            sys.exit(f"nvme_rows.py: {shlex.join(traced)} failed: {done.stderr[-2000:]}")
        listing = run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", out])
    result = json.loads(done.stdout.splitlines()[-1])
    moved = result["read_bytes"] + result["written_bytes"]
    counts = Counter(requests=moved // result["block_bytes"])
    for name, function in COUNTED.items():
        counts[name] = first_count(rf"\S*:{re.escape(function)}", listing)
    counts["program"] = first_count("PROGRAM TOTALS", listing)
    return counts


def first_count(what: str, listing: str) -> int:
    found = re.search(rf"^ *([\d,]+) \( *[\d.]+%\) +{what}", listing, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0
