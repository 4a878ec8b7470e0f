"""scripts/config_corpus.py over the examples: config_corpus_test.py PROGRAM."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent


class Corpus(unittest.TestCase):
    def test_a_models_file_is_not_counted(self) -> None:
        command = [sys.executable, REPOSITORY / "scripts" / "config_corpus.py", REPOSITORY / "examples"]
        result = subprocess.run(command, env={**os.environ, "SLUICE": PROGRAM}, capture_output=True, text=True, check=True)
        lines = result.stdout.splitlines()
        self.assertIn("demo/model.json          a model's file, not counted", lines)
        count = len(list((REPOSITORY / "examples").rglob("*.json"))) - 1
        self.assertRegex(lines[-1], rf"^{count} configurations: \d+ run as they are, 1 more with flags, 0 are refused$")


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
