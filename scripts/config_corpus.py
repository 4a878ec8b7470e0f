#!/usr/bin/env python3
"""Checks a folder of DeepSpeed configurations: which of them run here, and why the others do not.

    scripts/config_corpus.py DIR [FLAG...]

Every training configuration (.json) below DIR goes through `sluice config check` twice: as it is, and with the flags (default:
--learning-rate 1e-4 --steps 1000 --per-device-train-batch-size 1). Prints a row for each file, and the reasons by number of
files. A model's config.json is named, and not counted. SLUICE names the program (default build/bin/sluice). Exit code 0
when every file was read.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
MODEL_FILE = "this looks like a model's config.json"
DEFAULT_FLAGS = ["--learning-rate", "1e-4", "--steps", "1000", "--per-device-train-batch-size", "1"]


def check(files: list[Path], flags: list[str]) -> dict[str, str]:
    """The mistakes of each file by its path; empty for a file that runs."""
    program = os.environ.get("SLUICE", str(REPO / "build/bin/sluice"))
    # A file with nothing but "aio" and "sluice" goes over the one before it, so each file is a call of its own.
    verdicts = {}
    for file in files:
        run = subprocess.run([program, "config", "check", str(file), "--json", *flags], capture_output=True, text=True)
        if run.returncode not in (0, 2):
            sys.exit(f"{program}: exit code {run.returncode} for {file}: {run.stderr}")
        answer = json.loads(run.stdout.splitlines()[-1])
        verdicts[str(file)] = answer.get("error", "")
    return verdicts


def reasons(error: str, file: str) -> list[str]:
    """The messages without places and without the last line."""
    lines = [line for line in error.splitlines() if not re.search(r"^(the first )?\d+ problems? in ", line)]
    return [re.sub(r"^\S+?:\d+:\d+: ", "", line.replace(file, "F")) for line in lines]


def kind_of(reason: str) -> str:
    """A reason that files share: the key and the beginning of the message."""
    key, _, message = reason.partition(": ")
    words = re.sub(r'"[^"]*"|\d[\d.e+-]*', "*", message).split()
    return f"{key}: {' '.join(words[:9])}"


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) > 1 else 2
    folder = Path(sys.argv[1])
    flags = sys.argv[2:] or DEFAULT_FLAGS
    files = sorted(path for path in folder.rglob("*.json") if path.is_file())
    if not files:
        sys.exit(f"{folder}: no .json file there")
    bare, flagged = check(files, []), check(files, flags)
    width = max(len(str(file.relative_to(folder))) for file in files)
    counts: collections.Counter[str] = collections.Counter()
    models = {str(file) for file in files if MODEL_FILE in bare[str(file)]}
    for file in files:
        if str(file) in models:
            print(f"{str(file.relative_to(folder)):{width}}  a model's file, not counted")
            continue
        error = flagged[str(file)]
        verdict = "runs" if not bare[str(file)] else "runs with flags" if not error else "refused"
        why = reasons(error, str(file))
        counts.update({kind_of(reason) for reason in why})
        print(f"{str(file.relative_to(folder)):{width}}  {verdict:15}  {why[0] if why else ''}".rstrip())
        for reason in why[1:]:
            print(f"{'':{width}}  {'':15}  {reason}")
    print(f"\nreasons, with {' '.join(flags)}\n")
    for kind, count in counts.most_common():
        print(f"{count:5}  {kind}")
    counted = bare.keys() - models
    as_it_is = sum(not bare[file] for file in counted)
    with_flags = sum(bool(bare[file]) and not flagged[file] for file in counted)
    refused = len(counted) - as_it_is - with_flags
    print(f"\n{len(counted)} configurations: {as_it_is} run as they are, {with_flags} more with flags, {refused} are refused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
