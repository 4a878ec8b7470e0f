"""A model serves one Trainer after another: its engine leaves the values in it."""

from __future__ import annotations

import json
from pathlib import Path

from hf_runs import differences, run


def test_a_model_is_evaluated_trained_trained_on_and_retried(tmp_path: Path) -> None:
    found = {}
    for kind in ("ds", "plain"):
        folder = tmp_path / kind
        folder.mkdir()
        run("again_script.py", folder, kind, provide=kind == "ds")
        found[kind] = json.loads((folder / "report.json").read_text())
    assert {name: len(losses) for name, losses in found["ds"].items() if not name.startswith("evaluated")} == {
        "first": 4, "second": 4, "retried": 4,
    }
    for name, losses in found["plain"].items():
        assert differences(found["ds"][name], losses) < 1e-5, name
