"""scripts/gpu_check.sh --rehearse: that the rows which are measured on a GPU run and are printed.

gpu_rehearsal_test.py BINARIES
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BINARIES = sys.argv.pop(1)
sys.path.insert(0, str(REPOSITORY / "bench"))

from gpu import python_loops, speed, training  # noqa: E402
from gpu.row import Place, Row  # noqa: E402
from gpu.training import Run  # noqa: E402

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
        listed = subprocess.run(["ctest", "--test-dir", Path(BINARIES).parent, "-N", "-L", "^gpu$"], capture_output=True, text=True)
        known = re.findall(r"^ *Test *#\d+: (\w+)$", listed.stdout, re.MULTILINE)
        self.assertEqual({program["name"] for program in programs}, {*known})
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
        (folder / "row-10.json").write_text(json.dumps({**document, "title": "Row 10"}))
        printed = check("--markdown", str(folder))
        self.assertEqual(printed.returncode, 0, printed.stderr)
        titles = [line for line in printed.stdout.splitlines() if line.startswith("### ")]
        self.assertEqual((len(titles), titles[-1]), (len(CHEAP) + 1, "### Row 10"))
        for text in ("| to the device |", "| swap, ", "- missing: what was not there", "commit "):
            self.assertIn(text, printed.stdout)

    def test_a_limit_ends_a_row(self) -> None:
        out = Path(self.folder.name) / "limited"
        short = check("--rehearse", "--binaries", BINARIES, "--seconds", "1", str(out), "1")
        self.assertEqual(short.returncode, 1)
        self.assertIn("no time left", short.stdout)


class Cases(unittest.TestCase):
    """Those of a GPU, of which nothing is run here."""

    def row(self, seconds: float, *cases: str) -> Row:
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-", dir=".")
        self.addCleanup(folder.cleanup)
        here = Path(folder.name)
        place = Place(here, here, {}, False, True, "", None, cases)
        return Row(place, here / "row-10.part.json", time.monotonic() + seconds, {})

    def begun(self, seconds: float, *cases: str) -> list[str]:
        """Sides of row 10 that are begun, where each takes as long as it may."""
        row, begun = self.row(seconds, *cases), []

        def run_side(row: Row, folder: Path, engine: str, case: python_loops.Case, traced: bool) -> Run:
            name = f"{case.name}, {case.tokens // 1024} K, ratio {case.ratio:g}: {engine}"
            begun.append(name + ", traced" * traced)
            row.deadline -= case.needed_seconds(engine) + python_loops.TRACE_SECONDS * traced
            return Run([], None, [], 0, 0, "")

        with mock.patch.object(python_loops, "run_side", run_side):
            with mock.patch.object(importlib.util, "find_spec", lambda name: name):
                python_loops.measure(row, Path())
        return begun

    def test_a_run_begins_only_if_it_can_end(self) -> None:
        without_deepspeed = [f"1.3 B, 32 K, ratio 1: {side}" for side in ("sluice", "fsdp", "resident")]
        self.assertEqual(self.begun(35 + 48 + 45), without_deepspeed)
        self.assertEqual(self.begun(35 + 48 + 67 + 45)[2], "1.3 B, 32 K, ratio 1: deepspeed")
        self.assertEqual(self.begun(90, "8 B"), [])
        self.assertEqual(len(self.begun(1e4)), 15)

    def test_a_trace_takes_no_time_from_the_next_side(self) -> None:
        sides = 35 + 48 + 67 + 25
        names = [f"1.3 B, 32 K, ratio 1: {side}" for side in ("sluice", "fsdp", "deepspeed", "resident")]
        self.assertEqual(self.begun(sides + 20 + 44)[:4], names)
        self.assertEqual(self.begun(sides + 20 + 46)[:4], [f"{names[0]}, traced", *names[1:]])

    def test_a_run_that_is_cut_behind_its_steps_is_whole(self) -> None:
        steps = "import sys, time; print('{}', file=open(sys.argv[1] + '/steps.jsonl', 'w'), flush=True); time.sleep(60)"
        row = self.row(4.0)
        report = row.path.parent / "report"
        line = [sys.executable, "-c", steps, str(report)]
        with mock.patch.object(training, "gpu_used_bytes", lambda: 0):
            self.assertEqual(training.watched(row, line, report, 1, None, {}).ended, "")
            row.deadline = time.monotonic() + 4.0
            ended = training.watched(row, line, report, 2, None, {}).ended
        self.assertEqual(ended, "ended after 1 of 2 steps: no time left")

    def test_a_kernel_that_does_not_tell_of_locked_memory_ends_no_row(self) -> None:
        row = self.row(4.0)
        watch = training.Watch(row.place, row.path)
        with (
            mock.patch.object(training, "gpu_used_bytes", lambda: 0),
            mock.patch.object(Path, "read_text", lambda _: "VmRSS:\t8 kB\n"),
        ):
            watch.look(1, 1)
        self.assertEqual((watch.peak, watch.samples[0].locked_bytes), (8192, None))

    def begun_of_row_3(self, seconds: float, *cases: str) -> list[str]:
        """Runs that are begun, where each takes as long as it may."""
        row, begun = self.row(seconds, *cases), []

        def run(bench: speed.Bench, case: speed.Case) -> None:
            begun.append(f"{case.model.name}, {case.tokens // 1024} K")
            bench.row.deadline -= case.needed_seconds

        with mock.patch.object(speed.Bench, "offloaded", run), mock.patch.object(speed.Bench, "resident", run):
            speed.steps_beside_resident(row)
        return begun

    def test_a_run_of_row_3_begins_only_if_it_can_end(self) -> None:
        self.assertEqual(self.begun_of_row_3(75, "8,192 tokens"), 2 * ["1.3 B, 8 K"])
        self.assertEqual(self.begun_of_row_3(100, "6.7 B"), [])
        clipped = "131,072 tokens a step, clipping 1"
        self.assertNotIn("6.7 B, 128 K", self.begun_of_row_3(125, clipped))
        # A small model behind a large one, for which there is no time.
        self.assertEqual(self.begun_of_row_3(100, "6.7 B", "15 threads"), ["1.3 B, 8 K"])

    def test_cases_are_chosen_by_their_names(self) -> None:
        self.assertEqual(self.begun(1e4, "ratio 0"), ["1.3 B, 8 K, ratio 0: sluice, traced"])
        row = self.row(1e4, "no such case")
        python_loops.measure(row, Path())
        speed.steps_beside_resident(row)
        self.assertEqual(sum("a case that is asked for; there are" in of for of in row.missing), 2)

    def test_row_3_has_states_on_the_gpu_and_fewer_threads(self) -> None:
        cases = {str(case): case.work for case, _ in speed.ROUNDS}
        name = "1.3 B, sequences of 1,024, 8,192 tokens a step"
        self.assertEqual(cases[f"{name}, ratio 0.9"].ratio, 0.9)
        clipped = name.replace("8,192", "32,768") + ", clipping 1, ratio 0.9"
        self.assertEqual(cases[clipped].clipping, 1)
        threads = cases[f"{name}, 15 threads of the optimizer"].sluice["threads"]
        self.assertEqual(threads, {"optimizer": 15})


def check(*arguments: str) -> subprocess.CompletedProcess:
    line = [str(REPOSITORY / "scripts/gpu_check.sh"), *arguments]
    environment = {**os.environ, "SLUICE_PYTHON": sys.executable}  # needs no torch for these
    return subprocess.run(line, capture_output=True, text=True, env=environment)


if __name__ == "__main__":
    unittest.main()
