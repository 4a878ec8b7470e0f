"""The scripts of examples/python run, and learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "python"


def losses_of(place: Path, *arguments: str) -> list[float]:
    command = [sys.executable, "-W", "ignore", *arguments]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", result.stdout)]


@pytest.mark.parametrize("arguments", [[], ["--device", "nvme", "--path", "."]])
def test_the_loop_of_ones_own(arguments: list[str], tmp_path: Path) -> None:
    losses = losses_of(tmp_path, str(EXAMPLES / "own_loop.py"), "--steps", "60", *arguments)
    assert losses[-1] < losses[0] / 2


def test_the_convolutional_network(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, str(EXAMPLES / "cnn.py"), "--deepspeed_config", str(EXAMPLES / "ds_cnn.json"))
    assert losses[-1] < losses[0]


def test_the_gpt_prints_its_last_step_and_makes_the_folder_of_its_drive(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, str(EXAMPLES / "gpt.py"), "--deepspeed_config", str(EXAMPLES / "ds_infinity.json"), "--steps", "1")
    assert len(losses) == 1


# Runs the script with one file after the other: the import of PyTorch takes longer than the steps.
ONE_BY_ONE = """
import runpy, sys
script, *files = sys.argv[1:]
for file in files:
    sys.argv = [script, "--deepspeed_config", file]
    runpy.run_path(script, run_name="__main__")
"""


@pytest.mark.long
def test_the_gpt_has_equal_losses_by_every_file(tmp_path: Path) -> None:
    files = sorted(EXAMPLES.glob("ds_[zi]*.json"))
    assert len(files) == 4
    losses = losses_of(tmp_path, "-c", ONE_BY_ONE, str(EXAMPLES / "gpt.py"), *map(str, files))
    assert len(losses) == 16  # every fifth of 20 steps
    assert losses == losses[:4] * 4
    assert losses[3] < losses[0]
