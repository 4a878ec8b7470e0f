"""The row `tests` of scripts/gpu_check.sh, with programs that stand for the tests: its limit, and what stays of it."""

from __future__ import annotations

import json
import os
import select
import sys
import tempfile
import time
import unittest
import zipfile
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "bench"))

import gpu_rows  # noqa: E402
from gpu import tests  # noqa: E402
from gpu.row import Place  # noqa: E402

PASSED = """
case = {"name": "Works", "classname": "Gpu", "result": "COMPLETED"}
report = sys.argv[1].split(":", 1)[1]
open(report, "w").write(json.dumps({"testsuites": [{"testsuite": [case]}]}))
"""
HANGS = """
print("it began", flush=True)
subprocess.run(["sleep", "600"])
"""
# Its child holds the pipe open.
HANGS_WITH_A_CHILD = """
pipe = os.open("{pipe}", os.O_WRONLY)
os.write(pipe, b"begun ")
subprocess.Popen(["sleep", "600"], pass_fds=[pipe])
os.close(pipe)
subprocess.run(["sleep", "600"])
"""


def program(text: str) -> str:
    return f"#!{sys.executable}\nimport json, os, shutil, subprocess, sys\n{text}"


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.log = self.folder / "tests.log"
        self.kept: list[dict] = []
        (self.folder / "bin").mkdir()

    def place(self, rehearsal: bool = False) -> Place:
        binaries = self.folder / "bin"
        return Place(binaries, self.folder, {**os.environ}, rehearsal, not rehearsal, "", None)

    def add(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(program(text))
        path.chmod(0o755)

    def run_tests(self, *names: str, seconds: float = 60.0) -> dict:
        def keep(so_far: dict) -> None:
            self.kept.append(json.loads(json.dumps(so_far)) | {"log": self.log.read_text(errors="replace")})

        return tests.run_tests(self.place(), [*names], self.log, time.monotonic() + seconds, keep)


class Programs(Folder):
    def test_a_program_gets_no_more_than_is_left_and_those_behind_it_are_not_begun(self) -> None:
        self.add("first", PASSED)
        self.add("hangs", HANGS)
        self.add("behind", PASSED)
        first, hangs, behind = self.run_tests("first", "hangs", "behind", seconds=3)["programs"]
        self.assertEqual((first["ended"], first["passed"]), ("", 1))
        self.assertRegex(hangs["ended"], "^it did not end in [0-3] s: it began$")
        self.assertEqual(behind["ended"], tests.NO_TIME)

    def test_each_program_is_kept_when_it_has_ended(self) -> None:
        self.add("first", PASSED + "print('all of it passed')")
        self.add("second", PASSED)
        result = self.run_tests("first", "second")
        self.assertTrue(result["passed"])
        self.assertEqual([len(kept["programs"]) for kept in self.kept], [1, 2])
        self.assertFalse(self.kept[0]["passed"])
        self.assertIn("all of it passed", self.kept[0]["log"])

    def test_the_log_has_the_output_of_a_program_that_still_runs(self) -> None:
        self.add("first", PASSED + f"print('now', flush=True)\nshutil.copy('{self.log}', '{self.folder}/seen')")
        self.run_tests("first")
        self.assertEqual((self.folder / "seen").read_text(), "== first\nnow\n")

    def test_bytes_that_are_no_text_end_nothing(self) -> None:
        self.add("first", "sys.stdout.buffer.write(b'\\xff no text')\nsys.exit(3)")
        (one,) = self.run_tests("first")["programs"]
        self.assertEqual(one["ended"], "exit status 3: \ufffd no text")


class Row(Folder):
    def test_its_limit_is_that_of_its_programs_and_a_kill_loses_nothing(self) -> None:
        out = self.folder / "out"
        names = gpu_rows.TESTS[:3]
        self.add(names[0], PASSED)
        self.add(names[1], PASSED + f"shutil.copy('{out}/tests.json', '{self.folder}/seen')")
        self.add(names[2], HANGS)
        line = ["gpu_rows.py", "--rehearse", "--binaries", str(self.folder / "bin"), str(out), "tests"]
        with (
            mock.patch.object(sys, "argv", [*line, "--row-seconds", "4"]),
            mock.patch.multiple(gpu_rows, LEAST_SECONDS=1.0, CLOSING_SECONDS=1.0, TESTS=names),
        ):
            gpu_rows.Check(gpu_rows.parse_arguments()).run()
        seen = json.loads((self.folder / "seen").read_text())
        self.assertEqual(seen["state"], "killed")
        self.assertEqual([one["passed"] for one in seen["programs"]], [1])
        document = json.loads((out / "tests.json").read_text())
        self.assertEqual(document["state"], "finished")  # of a rehearsal
        self.assertEqual([one["passed"] for one in document["programs"]], [1, 1, 0])
        self.assertIn("did not end in", document["programs"][2]["ended"])


class Wheel(Folder):
    CHECKS = """
if sys.argv[1:] == ["--list"]:
    print("a warning", *("check " + name for name in ("good", "raises", "aborts", "hangs", "last")), sep="\\n")
elif sys.argv[1] == "raises":
    print("FAILED raises\\nAssertionError: no")
    sys.exit(1)
elif sys.argv[1] == "aborts":
    sys.stdout.buffer.write(b"no CUDA \\xff")
    sys.stdout.flush()
    os.abort()
elif sys.argv[1] == "hangs":
    {hangs}
"""

    def setUp(self) -> None:
        super().setUp()
        (self.folder / "python").mkdir()
        with zipfile.ZipFile(self.folder / "python/one.whl", "w") as wheel:
            wheel.writestr("sluice/__init__.py", "")
        self.script = self.folder / "script.py"
        checks = mock.patch.object(tests, "CHECKS", self.script)
        checks.start()
        self.addCleanup(checks.stop)

    def test_a_check_that_ends_its_process_hides_no_other_one(self) -> None:
        self.script.write_text(program(self.CHECKS.format(hangs="pass")))
        (wheel,) = self.run_tests()["programs"]
        self.assertEqual((wheel["name"], wheel["ended"], wheel["passed"]), ("one.whl", "", 3))
        self.assertEqual([*wheel["failed"]], ["raises", "aborts"])
        self.assertIn("AssertionError: no", wheel["failed"]["raises"])
        self.assertIn("killed by signal 6: no CUDA \ufffd", wheel["failed"]["aborts"])

    def test_a_check_that_hangs_is_ended_with_its_ranks_and_no_check_takes_more_than_is_left(self) -> None:
        path = self.folder / "pipe"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        hangs = HANGS_WITH_A_CHILD.format(pipe=path).strip().replace("\n", "\n    ")
        self.script.write_text(program(self.CHECKS.format(hangs=hangs)))
        (wheel,) = self.run_tests(seconds=5)["programs"]
        self.assertIn("it did not end in", wheel["failed"]["hangs"])
        self.assertEqual(wheel["failed"]["last"], tests.NO_TIME)
        self.assertEqual(os.read(reader, 100), b"begun ")
        self.assertTrue(select.select([reader], [], [], 10)[0], "its child is still there")
        self.assertEqual(os.read(reader, 100), b"")

    def test_a_wheel_that_this_python_cannot_load_is_named_once(self) -> None:
        self.script.write_text(program('sys.exit("ModuleNotFoundError: sluice._core")'))
        (wheel,) = self.run_tests()["programs"]
        self.assertEqual(wheel["ended"], "no check ran: ModuleNotFoundError: sluice._core")
        self.assertEqual((wheel["passed"], wheel["failed"]), (0, {}))


if __name__ == "__main__":
    unittest.main()
