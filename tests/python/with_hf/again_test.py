"""A model serves one Trainer after another: its engine leaves the values in it."""

from __future__ import annotations

import json
from pathlib import Path

from hf_runs import run
from small_models import differences


def test_a_model_is_evaluated_trained_trained_on_and_retried(tmp_path: Path) -> None:
    run("again_script.py", tmp_path)
    found = {kind: json.loads((tmp_path / f"{kind}.json").read_text()) for kind in ("ds", "plain")}
    assert {name: len(losses) for name, losses in found["ds"].items() if not name.startswith("evaluated")} == {
        "first": 4, "second": 4, "retried": 4,
    }
    for name, losses in found["plain"].items():
        assert differences(found["ds"][name], losses) < 1e-5, name
