"""The stub of the extension `_engine`, against the extension."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CODE = "import sys, torch; from mypy import stubtest; sys.exit(stubtest.test_stubs(stubtest.parse_options(['--concise', 'sluice._engine'])))"
CACHE = Path(__file__).parents[4] / ".cache/python/mypy"  # kept: mypy analyses all of PyTorch
# pybind11's classes have a metaclass of their own, and its enumerations are no Enum.
OF_PYBIND11 = re.compile(r"sluice\._engine\.(DType\.|\w+(\.__init__)? is inconsistent, (metaclass differs|stub does not have \*args parameter \"args\"))")


def test_the_stub_has_the_names_of_the_extension(tmp_path: Path) -> None:
    environment = {**os.environ, "MYPY_CACHE_DIR": str(CACHE)}
    result = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    lines = (result.stdout + result.stderr).splitlines()
    assert any(OF_PYBIND11.match(line) for line in lines), lines  # it ran
    assert [line for line in lines if not OF_PYBIND11.match(line)] == []
