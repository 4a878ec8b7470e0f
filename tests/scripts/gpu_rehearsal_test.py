"""scripts/gpu_check.sh --rehearse: that the rows which are measured on a GPU run and are printed.

gpu_rehearsal_test.py BINARIES
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BINARIES = sys.argv.pop(1)
CHEAP = ("1", "2", "4", "5", "7", "8", "9")


class Rehearsal(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory(prefix="sluice-test-", dir=".")
        cls.out = Path(cls.folder.name) / "out"
        cls.first = check("--rehearse", "--binaries", BINARIES, str(cls.out), "cheap", "tests")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.folder.cleanup()

    def row(self, name: str) -> dict:
        return json.loads((self.out / f"row-{name}.json").read_text())

    def test_every_row_ends_and_says_that_it_is_a_rehearsal(self) -> None:
        self.assertEqual(self.first.returncode, 0, self.first.stdout + self.first.stderr)
        for name in CHEAP:
            row = self.row(name)
            self.assertEqual(row["state"], "finished", (self.out / f"row-{name}.log").read_text())
            self.assertTrue(row["rehearsal"])
            self.assertTrue(row["facts"]["date"])
        left = {path.name for path in self.out.iterdir()}
        rows = {f"row-{name}.{kind}" for name in CHEAP for kind in ("json", "log")}
        self.assertEqual(left, rows | {"tests.json", "tests.log"})

    def test_every_figure_is_there(self) -> None:
        expected = {"1": 6, "2": 4, "4": 12, "5": 7, "7": 6, "8": 2, "9": 2}
        found = {name: sum(len(of["lines"]) for of in self.row(name)["tables"]) for name in CHEAP}
        self.assertEqual(found, expected)

    def test_offloaded_losses_are_the_resident_ones(self) -> None:
        (table,) = self.row("5")["tables"]
        self.assertTrue(all(line["met"] for line in table["lines"]), table)

    def test_the_tests_were_run(self) -> None:
        programs = json.loads((self.out / "tests.json").read_text())["programs"]
        self.assertTrue(programs)
        for program in programs:
            self.assertEqual((program["ended"], program["failed"]), ("", {}))

    def test_what_is_there_is_not_measured_again(self) -> None:
        before = (self.out / "row-1.json").read_bytes()
        again = check("--rehearse", "--binaries", BINARIES, str(self.out), "1")
        self.assertEqual(again.returncode, 0)
        self.assertIn("not measured again", again.stdout)
        self.assertEqual((self.out / "row-1.json").read_bytes(), before)

    def test_a_rehearsal_is_not_printed_as_a_result(self) -> None:
        refused = check("--markdown", str(self.out))
        self.assertNotEqual(refused.returncode, 0)
        self.assertEqual(refused.stdout, "")
        self.assertIn("a rehearsal", refused.stderr)

    def test_a_result_is_printed(self) -> None:
        folder = Path(self.folder.name) / "result"
        folder.mkdir()
        for name in CHEAP:
            document = {**self.row(name), "rehearsal": False, "missing": ["what was not there"]}
            (folder / f"row-{name}.json").write_text(json.dumps(document))
        printed = check("--markdown", str(folder))
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertEqual(printed.stdout.count("### "), len(CHEAP))
        for text in ("| to the device |", "| swap, ", "- missing: what was not there", "commit "):
            self.assertIn(text, printed.stdout)

    def test_a_limit_ends_a_row(self) -> None:
        out = Path(self.folder.name) / "limited"
        short = check("--rehearse", "--binaries", BINARIES, "--seconds", "1", str(out), "1")
        self.assertEqual(short.returncode, 1)
        self.assertIn("no time left", short.stdout)


def check(*arguments: str) -> subprocess.CompletedProcess:
    line = [str(REPOSITORY / "scripts/gpu_check.sh"), *arguments]
    environment = {**os.environ, "SLUICE_PYTHON": sys.executable}  # needs no torch for these
    return subprocess.run(line, capture_output=True, text=True, env=environment)


if __name__ == "__main__":
    unittest.main()
