#!/usr/bin/env python3
"""Measures `sluice train` over several ranks: weak scaling, two hosts on a slow link, and the formulas of `sluice plan --ranks`.

Rows: scaling (two ranks beside two processes that know nothing of each other), hosts (two network namespaces, as root),
prediction (1, 2 and 4 ranks beside the plan). Best on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paired import Progress, folder_on_drive, write_result
from ranks.hosts import hosts
from ranks.prediction import prediction
from ranks.runs import REPOSITORY, Bench, Case, Failed, stop
from ranks.scaling import scaling
from row_report import text_table

ROWS: dict[str, Callable[..., list[dict]]] = {"scaling": scaling, "hosts": hosts, "prediction": prediction}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=folder_on_drive, help="on the drive that takes the states")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value, and the facts")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"of {', '.join(ROWS)} (all)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each side (7)")
    parser.add_argument("--layers", type=int, default=Case.layers, help=f"of the model ({Case.layers})")
    parser.add_argument("--width", type=int, default=Case.width, help=f"of the model ({Case.width})")
    parser.add_argument("--steps", type=int, default=Case.steps, help=f"of a run ({Case.steps})")
    parser.add_argument("--link", default="1gbit", help="rate of the link between the hosts, as tc takes it (1gbit)")
    parser.add_argument("--binaries", type=Path, default=REPOSITORY / "build/bin", metavar="DIR")
    arguments = parser.parse_args()
    unknown = set(arguments.rows.split(",")) - set(ROWS)
    if unknown:
        parser.error(f"no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    case = replace(Case(), layers=arguments.layers, width=arguments.width, steps=arguments.steps)
    progress = Progress()
    rows = []
    with tempfile.TemporaryDirectory(prefix="sluice-ranks-", dir=arguments.folder) as folder:
        bench = Bench(Path(folder), arguments.binaries.resolve())
        for name in arguments.rows.split(","):
            found = ROWS[name](bench, case, arguments, progress)
            progress.clear()
            for row in found:
                print(text_table(row), flush=True)
            rows += found
        if arguments.out:
            facts = {"commands": bench.commands, "rows": rows}
            write_result(arguments.out, REPOSITORY, facts, {folder: "DIR"})


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Failed as failed:
        stop(str(failed))
