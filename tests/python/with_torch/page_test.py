"""The examples of docs/python.md run, in their order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from conftest import REPOSITORY

PAGE = REPOSITORY / "docs" / "python.md"


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    # Files that the page takes for granted.
    for name, source in re.findall(r"<!-- file (\S+): (\S+) -->", PAGE.read_text()):
        (tmp_path / name).write_text((REPOSITORY / source).read_text())
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    result = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
