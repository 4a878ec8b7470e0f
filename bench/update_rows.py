#!/usr/bin/env python3
"""Measures the updates of a step beside the bare kernel over the same memory, for several numbers of threads.

Each line is a process of update_bench, whose sides take turns pass by pass. The lines take turns too.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from paired import Progress, output_of, write_result
from row_report import slices_line, text_table

REPOSITORY = Path(__file__).resolve().parent.parent
BAR = 0.98
FORMATS = {
    "split": "split master",
    "fp32": "fp32 master",
    "split_bf16": "split master, bf16 moments",
    "bf16": "fp32 master, bf16 moments",
}


def slices_of(line: list) -> dict:
    text = output_of(*line)
    if text == "unknown":
        sys.exit(f"{shlex.join(map(str, line))} failed")
    return json.loads(text)["slices"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value, and the facts")
    parser.add_argument("--threads", default="1,2,8,16", help="of the optimizer (1,2,8,16)")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of the states (all)")
    parser.add_argument("--layers", type=int, default=4, help="blocks (4)")
    parser.add_argument("--width", type=int, default=1536, help="of a block (1536: 28 M elements)")
    parser.add_argument("--rounds", type=int, default=10, help="of a process (10)")
    parser.add_argument("--processes", type=int, default=3, help="of each line (3)")
    parser.add_argument("--tiles", type=int, metavar="ELEMENTS",
                        help="also one tile after the other, with a barrier behind each")
    parser.add_argument("--program", type=Path, default=REPOSITORY / "build/bin/update_bench")
    arguments = parser.parse_args()
    shape = [arguments.layers, arguments.width, arguments.rounds]
    cases = {}
    for threads in map(int, arguments.threads.split(",")):
        for state in arguments.formats.split(","):
            name = f"{FORMATS[state]}, {threads} threads"
            cases[name] = [arguments.program, state, threads, *shape]
            if arguments.tiles:
                cases[f"{name}, by tiles"] = [*cases[name], arguments.tiles]
    slices: dict = {name: {"ours": [], "peer": [], "again": []} for name in cases}
    progress = Progress()
    for number in range(arguments.processes):
        for name, line in cases.items():
            progress.show(f"process {number + 1} of {arguments.processes}: {name}")
            for side, rates in slices_of(line).items():
                slices[name][side] += rates
    progress.clear()
    lines = [
        slices_line(name, sides, None if name.endswith("tiles") else BAR)
        for name, sides in slices.items()
    ]
    row = {"title": "GB/s of updates, everything in host memory", "peer": "kernel", "lines": lines}
    print(text_table(row))
    if arguments.out:
        commands = [shlex.join(map(str, line)) for line in cases.values()]
        write_result(arguments.out, REPOSITORY, {"commands": commands, "rows": [row]}, {})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
