"""scripts/gpu_bundle.sh: that it tells of a wheel which the machine with the GPU cannot load. Programs that build are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
STRIP = """while [[ "$1" != -o ]]; do shift; done
: >"$2"
"""
TOOLS = {"cmake": "", "ctest": "echo '  Test #1: one_gpu_test'", "ldd": "", "strip": STRIP}


class Wheels(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="sluice-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "tree/scripts").mkdir(parents=True)
        for name in ("lib.sh", "gpu_bundle.sh"):
            shutil.copy(REPOSITORY / "scripts" / name, self.folder / "tree/scripts")
        self.add("tree/build/CMakeCache.txt", "LibTorch_ROOT_DIR:PATH=/nowhere/torch\n")
        self.add("tree/scripts/test_python.sh", "#!/usr/bin/env bash\nexit 1\n")  # no wheel
        for name, text in TOOLS.items():
            self.add(f"tools/{name}", f"#!/usr/bin/env bash\n{text}")
        for line in (["init", "-q"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "a"]):
            subprocess.run(["git", *line], cwd=self.folder / "tree", check=True)

    def add(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def warning(self, **more: str) -> str:
        line = [str(self.folder / "tree/scripts/gpu_bundle.sh"), str(self.folder / "bundle")]
        environment = {**os.environ, "PATH": f"{self.folder}/tools:{os.environ['PATH']}", **more}
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def test_one_for_the_gpu_machines_python_is_taken_without_a_word(self) -> None:
        wheel = self.add("sluice-0.1.0-cp312-cp312-manylinux_2_35_x86_64.whl", "")
        self.assertEqual(self.warning(SLUICE_WHEEL=str(wheel)), "")

    def test_another_one_is_named_with_what_to_do(self) -> None:
        wheel = self.add("sluice-0.1.0-cp311-cp311-linux_x86_64.whl", "")
        said = self.warning(SLUICE_WHEEL=str(wheel))
        for text in ("warning: ", "Python 3.12", wheel.name, "scripts/wheel_for.py 3.12", "SLUICE_WHEEL"):
            self.assertIn(text, said)

    def test_none_is_named_with_what_to_do(self) -> None:
        said = self.warning(SLUICE_WHEEL="")
        for text in ("warning: there is no wheel", "row 10", "scripts/wheel_for.py 3.12", "SLUICE_WHEEL"):
            self.assertIn(text, said)


if __name__ == "__main__":
    unittest.main()
