"""The scripts of examples/python run, and learn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "python"


def losses_of(place: Path, script: str, *arguments: str) -> list[float]:
    command = [sys.executable, "-W", "ignore", str(EXAMPLES / script), *arguments]
    result = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", result.stdout)]


@pytest.mark.parametrize("arguments", [[], ["--device", "nvme", "--path", "."]])
def test_the_loop_of_ones_own(arguments: list[str], tmp_path: Path) -> None:
    losses = losses_of(tmp_path, "own_loop.py", "--steps", "60", *arguments)
    assert losses[-1] < losses[0] / 2


def test_the_convolutional_network(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, "cnn.py", "--deepspeed_config", str(EXAMPLES / "ds_cnn.json"))
    assert losses[-1] < losses[0]


def test_the_gpt_prints_its_last_step_and_makes_the_folder_of_its_drive(tmp_path: Path) -> None:
    losses = losses_of(tmp_path, "gpt.py", "--deepspeed_config", str(EXAMPLES / "ds_infinity.json"), "--steps", "1")
    assert len(losses) == 1


@pytest.mark.long
def test_the_gpt_has_equal_losses_by_every_file(tmp_path: Path) -> None:
    files = sorted(EXAMPLES.glob("ds_[zi]*.json"))
    assert len(files) == 4
    courses = [losses_of(tmp_path, "gpt.py", "--deepspeed_config", str(file)) for file in files]
    assert courses == [courses[0]] * 4
    assert courses[0][-1] < courses[0][0]
