"""scripts/test_results.py: every failure and every skip of a run is printed with its reason."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SCRIPT = REPOSITORY / "scripts" / "test_results.py"
CTEST = """<testsuite>
 <testcase name="nvme_test" classname="nvme_test" status="run"/>
 <testcase name="package_test" classname="package_test" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
</testsuite>"""
GTEST = """<testsuites><testsuite name="File">
 <testcase name="Reads" status="run" result="completed" classname="File"/>
 <testcase name="DISABLED_Maps" status="notrun" result="suppressed" classname="File"/>
 <testcase name="Mounts" status="run" result="skipped" classname="File">
  <skipped message="/src/file_test.cpp:28&#x0A;mount is not permitted"><![CDATA[/src/file_test.cpp:28
mount is not permitted]]></skipped>
 </testcase>
 <testcase name="Locks" status="run" result="skipped" classname="File">
  <skipped message="/src/file_test.cpp:40&#x0A;mount is not permitted"/>
 </testcase>
</testsuite></testsuites>"""


class TestResults(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        (self.root / "gtest").mkdir()

    def run_script(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), "ci", str(self.root), str(self.root)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_reasons_are_printed_with_the_tests(self) -> None:
        (self.root / "ctest.xml").write_text(CTEST)
        (self.root / "gtest" / "nvme_test.xml").write_text(GTEST)
        (self.root / "gtest" / "nvme_test_1.xml").write_text(GTEST)  # the program ran again inside another test
        (self.root / "tests_left_out.txt").write_text("tests/train: built without LibTorch\n")
        result = self.run_script()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(
            result.stdout.splitlines(),
            [
                "ci: 5 tests, 0 failed, 4 skipped",
                "     2  mount is not permitted (File.Locks, File.Mounts)",
                "     1  SKIP_RETURN_CODE=77 (package_test)",
                "     1  disabled (File.DISABLED_Maps)",
                "     -  not built: tests/train: built without LibTorch",
            ],
        )

    def test_failures_are_printed_with_what_they_wrote(self) -> None:
        crash = '<failure message="Failed"/><system-out>loading\nSegmentation fault</system-out>'
        (self.root / "ctest.xml").write_text(
            "<testsuite>"
            f'<testcase name="nvme_test" classname="nvme_test" status="fail">{crash}</testcase>'
            f'<testcase name="zero_test" classname="zero_test" status="fail">{crash}</testcase>'
            f'<testcase name="script_test" classname="script_test" status="fail">{crash}</testcase>'
            "</testsuite>"
        )
        (self.root / "gtest" / "nvme_test.xml").write_text(
            '<testsuites><testcase name="Reads" classname="File" status="run">'
            '<failure message="first"/><failure message="x.cpp:3&#x0A;1 != 2"><![CDATA[x.cpp:3\n1 != 2]]></failure>'
            "</testcase></testsuites>"
        )
        # Its tests passed, and its process failed after them.
        (self.root / "gtest" / "zero_test.xml").write_text(GTEST)
        result = self.run_script()
        self.assertEqual(result.returncode, 1, result.stderr)
        lines = result.stdout.splitlines()
        self.assertIn("ci: 7 tests, 3 failed, 3 skipped", lines)
        expected = ["  FAILED File.Reads", "    | first", "    | x.cpp:3", "    | 1 != 2"]
        for test in ("zero_test", "script_test"):
            expected += [f"  FAILED {test}", "    | loading", "    | Segmentation fault", "    | Failed"]
        self.assertEqual(lines[1 : 1 + len(expected)], expected)

    def test_a_file_that_cannot_be_read_is_a_failed_test(self) -> None:
        (self.root / "ctest.xml").write_text(CTEST)
        (self.root / "gtest" / "nvme_test.xml").write_text(GTEST + "uites>")
        result = self.run_script()
        self.assertEqual(result.returncode, 1, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(lines[:2], ["ci: 2 tests, 1 failed, 1 skipped", "  FAILED nvme_test"])
        self.assertIn("nvme_test.xml cannot be read", lines[2])

    def test_a_run_without_results_fails(self) -> None:
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("unknown", result.stderr)


if __name__ == "__main__":
    unittest.main()
