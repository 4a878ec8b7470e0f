"""scripts/skipped_tests.py: every skip of a run is printed with its reason."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SCRIPT = REPOSITORY / "scripts" / "skipped_tests.py"
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


class SkippedTests(unittest.TestCase):
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
                "ci: 5 tests, 4 skipped",
                "     2  mount is not permitted (File.Locks, File.Mounts)",
                "     1  SKIP_RETURN_CODE=77 (package_test)",
                "     1  disabled (File.DISABLED_Maps)",
                "     -  not built: tests/train: built without LibTorch",
            ],
        )

    def test_a_run_without_results_fails(self) -> None:
        result = self.run_script()
        self.assertEqual(result.returncode, 1)
        self.assertIn("unknown", result.stderr)


if __name__ == "__main__":
    unittest.main()
