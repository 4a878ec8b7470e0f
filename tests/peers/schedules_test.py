"""Learning rates beside DeepSpeed's and torch's own objects: 100 steps of every schedule, and resumed at step 37."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import schedules

PROGRAM = os.environ.get("SLUICE", str(Path(__file__).resolve().parents[2] / "build/bin/sluice"))


def ours(case: schedules.Case, folder: Path) -> tuple[list[float], list[list[float]] | None]:
    file = folder / "ds.json"
    file.write_text(json.dumps(case.config()))
    run = subprocess.run(
        [PROGRAM, "config", "rates", str(file), "--steps", str(schedules.STEPS), "--json"], capture_output=True, text=True, check=True
    )
    answer = json.loads(run.stdout)
    return [float(rate) for rate in answer["rates"]], answer.get("betas")


@pytest.mark.parametrize("case", schedules.CASES, ids=lambda case: case.name)
def test_rates_are_equal_to_the_last_bit(case: schedules.Case, tmp_path: Path) -> None:
    rates, betas = ours(case, tmp_path)
    theirs, their_betas = schedules.rates_of(case)
    assert [rate.hex() for rate in rates] == [rate.hex() for rate in theirs]
    if case.type == "OneCycle" and case.params.get("cycle_momentum", True):
        assert betas == their_betas
    else:
        assert betas is None
        assert their_betas == [[0.9, 0.95]] * schedules.STEPS


@pytest.mark.parametrize("case", schedules.CASES, ids=lambda case: case.name)
def test_a_resumed_schedule_of_theirs_has_the_rates_that_follow_from_the_step(case: schedules.Case, tmp_path: Path) -> None:
    rates, betas = ours(case, tmp_path)
    theirs, their_betas = schedules.rates_of(case, resumed_at=37)
    assert rates == theirs
    if betas is not None:
        assert betas == their_betas


def test_the_golden_values_are_those_of_this_environment() -> None:
    file = Path(__file__).resolve().parents[1] / "config/lr_golden.json"
    golden = json.loads(file.read_text())["cases"]
    assert [entry["name"] for entry in golden] == [case.name for case in schedules.CASES]
    for entry, case in zip(golden, schedules.CASES, strict=True):
        assert entry["config"] == case.config()
        assert entry["rates"] == [rate.hex() for rate in schedules.rates_of(case)[0]], case.name
