"""The scripts of examples/python that need Hugging Face's libraries run with their file, and learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hf_runs import HERE

EXAMPLES = HERE.parents[2] / "examples" / "python"


def output_of(place: Path, *arguments: str) -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    result = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


@pytest.mark.parametrize(("script", "files"), [("trainer.py", "model.safetensors"), ("lora.py", "adapter_model.safetensors")])
def test_a_script_learns_as_without_sluice_and_saves(script: str, files: str, tmp_path: Path) -> None:
    losses = {}
    for name, launch in (("plain", []), ("offloaded", ["-m", "sluice.as_deepspeed"])):
        arguments = [*launch, str(EXAMPLES / script), name]
        if launch:
            arguments += ["--deepspeed", str(EXAMPLES / "ds_trainer.json")]
        losses[name] = [float(loss) for loss in re.findall(r"loss ([\d.]+)", output_of(tmp_path, *arguments))]
        assert (tmp_path / name / files).is_file()
    assert len(losses["plain"]) == 4
    assert losses["offloaded"][-1] < losses["offloaded"][0]
    # Transformers draws the initial weights in another order where it builds a model under ZeRO-3.
    assert losses["offloaded"] == pytest.approx(losses["plain"], rel=0.05)


def test_a_model_larger_than_its_budget_is_built_on_the_drive_and_trains(tmp_path: Path) -> None:
    shape = ["--layers", "2", "--width", "256", "--vocabulary", "1000", "--steps", "2"]
    output = output_of(tmp_path, str(EXAMPLES / "larger_than_memory.py"), str(tmp_path), *shape)
    count = int(re.search(r"^([\d,]+) parameters, built", output, re.MULTILINE)[1].replace(",", ""))  # type: ignore[index]
    assert count == 1000 * 256 + 2 * layer_parameters(256) + 256
    assert len(re.findall(r"^step \d: loss", output, re.MULTILINE)) == 2
    assert "GiB above the imports" in output


def layer_parameters(width: int) -> int:
    """Of Qwen2 with heads of 128, one of keys and values, and biases of query, key and value."""
    inner = width * 35 // 6
    return 2 * width * width + width + 2 * (width * 128 + 128) + 3 * width * inner + 2 * width
