"""A Llama with an AdamW of two groups follows plain PyTorch, and every tier has equal bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hf_runs import run
from small_models import differences


@pytest.mark.parametrize(("precision", "steps"), [("fp32", 50), ("bf16", 25)])
def test_a_llama_with_two_groups_follows_plain_pytorch_on_every_tier(precision: str, steps: int, tmp_path: Path) -> None:
    run("llama_loop_script.py", tmp_path, precision, steps, provide=False)
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert losses["cpu"] == losses["device"]
    assert losses["nvme"] == losses["device"]
    assert len(losses["device"]) == steps
    furthest = differences(losses["device"], losses["plain"])
    print(f"{precision}: first loss {losses['device'][0]} and {losses['plain'][0]}, furthest {furthest:.3g} relative")
    if precision == "fp32":
        assert losses["device"][0] == losses["plain"][0]
        assert abs(losses["device"][49] - losses["plain"][49]) < 1e-6 * losses["plain"][49]
        assert furthest < 1e-6
    else:  # plain PyTorch has autocast, whose weights are rounded in other places
        assert furthest < 0.02
