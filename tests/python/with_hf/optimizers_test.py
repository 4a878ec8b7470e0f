"""Optimizers that a script gives the Trainer train by their formula, or end with an error that names them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf_runs import run
from small_models import differences


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each optimizer did, through Sluice and in plain PyTorch."""
    folder: Path = tmp_path_factory.mktemp("optimizers")
    run("optimizers_script.py", folder)
    return {kind: json.loads((folder / f"{kind}.json").read_text()) for kind in ("ds", "plain")}


@pytest.mark.parametrize("name", ["sgd, kept", "adagrad", "adagrad, decaying", "amsgrad", "maximize"])
def test_the_formula_is_that_of_the_script(reports: dict[str, dict[str, Any]], name: str) -> None:
    mine, plain = reports["ds"][name], reports["plain"][name]
    assert not isinstance(mine, str), mine
    assert len(mine) == 5
    assert mine[0] == plain[0]
    assert differences(mine, plain) < 1e-5


ERRORS = {
    "sgd": 'parameter group 0 was made by SGD (it has momentum, dampening, nesterov), and DeepSpeedCPUAdam would train it by another '
    'formula. Accelerate exchanges optimizers where "offload_optimizer" is set, and "zero_force_ds_cpu_optimizer": false in the '
    "configuration keeps this one",
    "rmsprop": "parameter group 0 was made by RMSprop (it has alpha, centered)",
    "rmsprop, kept": "an optimizer of class RMSprop has no formula here",
    "adafactor": "parameter group 0 was made by Adafactor (it has scale_parameter, relative_step)",
}


@pytest.mark.parametrize("name", ERRORS)
def test_no_optimizer_becomes_adam_silently(reports: dict[str, dict[str, Any]], name: str) -> None:
    assert isinstance(reports["plain"][name], list)
    assert str(reports["ds"][name]).startswith("ValueError: " + ERRORS[name])
