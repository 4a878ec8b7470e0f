"""A loop with Accelerate follows plain PyTorch, saves and loads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hf_runs import differences, run


@pytest.mark.parametrize("kind", ["json", "client"])
def test_a_loop_with_accelerate_follows_plain_pytorch(kind: str, tmp_path: Path) -> None:
    run("accelerate_script.py", tmp_path, kind)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"] == 14  # two epochs of 20 batches: six steps of three, and one of two
    assert report["losses"][0] == report["plain"][0]
    assert differences(report["losses"], report["plain"]) < 1e-5
    assert report["difference"] < 1e-5
    assert report["changed"]
    assert report["loaded"]
    assert (tmp_path / "model.safetensors").is_file()
