"""bench/rank_rows.py on a tiny model: that a row runs, and that a link which is cut ends the run with the rank named.

rank_rehearsal_test.py BINARIES ROW. Ends with 77 where the row needs network namespaces and they cannot be made.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BINARIES, ROW = sys.argv[1:]
LINES = {"scaling": 4, "hosts": 25, "prediction": 7}
SKIPPED = 77


class Rehearsal(unittest.TestCase):
    def test_the_row_has_its_figures(self) -> None:
        with tempfile.TemporaryDirectory(prefix="sluice-test-", dir=".") as folder:
            out = Path(folder) / "row.json"
            tiny = ["--rounds", "1", "--layers", "1", "--width", "64", "--steps", "4", "--rows", ROW]
            line = [str(REPOSITORY / "bench/rank_rows.py"), folder, "--out", str(out), "--binaries", BINARIES, *tiny]
            done = subprocess.run(line, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
            (row,) = json.loads(out.read_text())["rows"]
        self.assertEqual(len(row["lines"]), LINES[ROW], row)
        measured = [line for line in row["lines"] if line["case"] != "  compute alone"]  # a difference, which may be 0
        self.assertTrue(all(line["ours"] > 0 for line in measured), row)
        if ROW == "hosts":
            cut = row["lines"][-1]
            self.assertTrue(cut["met"], cut)
            self.assertIn("has not answered for", " ".join(cut["said"]))


def namespaces_can_be_made() -> bool:
    name = "sluice-probe"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
        limited = made and subprocess.run(
            ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf",
             "rate", "1gbit", "burst", "128kb", "latency", "5ms"], capture_output=True
        ).returncode == 0  # fmt: skip
    except FileNotFoundError:
        return False
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return limited


if __name__ == "__main__":
    if ROW == "hosts" and not namespaces_can_be_made():
        print("network namespaces with a limited rate need root, ip and tc (package iproute2)")
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
