"""Lines of the part in C++ go through `logging`: by a thread of their own, and those of the last calls too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Two steps that are updated; then, where asked, one that is skipped.
SCRIPT = """
import logging, sluice, torch
{handler}
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
config = {{
    "train_micro_batch_size_per_gpu": 1, "steps_per_print": 1, "optimizer": {{"type": "Adam"}}, "zero_allow_untested_optimizer": True,
    "sluice": {{"device": "host"}},
}}
engine, *_ = sluice.initialize(model=model, config=config)
for factor in {factors}:
    engine.backward(engine(torch.ones(1, 8)).sum() * factor)
    engine.step()
"""
SKIPPED = [1.0, 1.0, float("nan")]


def run(handler: str, factors: list[float], more: str = "") -> subprocess.CompletedProcess[str]:
    """``more``: further arguments of ``sluice.initialize``."""
    shown = "[" + ", ".join(f"float('{factor}')" for factor in factors) + "]"
    command = [sys.executable, "-c", SCRIPT.format(handler=handler, factors=shown).replace("config=config)", f"config=config{more})")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result


def test_a_warning_at_the_end_of_a_script_is_a_record_of_the_logger() -> None:
    result = run("logging.basicConfig(format='%(name)s %(levelname)s %(threadName)s %(message)s')", SKIPPED)
    assert re.search(r"^sluice WARNING sluice-log step 3: .* no update", result.stderr, re.MULTILINE), result.stderr
    assert "sluice: " not in result.stderr


def test_a_warning_is_shown_without_a_configuration_of_logging() -> None:
    assert run("", SKIPPED).stderr.count("no update") == 1


def test_a_run_without_a_directory_to_resume_from_is_warned_in_the_words_of_python() -> None:
    (warning,) = [line for line in run("", [1.0], ", resume=True").stderr.splitlines() if "begins at step 1" in line]
    assert "in Python: resume=True" in warning


def test_a_script_that_silences_the_logger_has_no_lines() -> None:
    assert run("logging.getLogger('sluice').setLevel(logging.ERROR)", SKIPPED).stderr == ""


def test_notes_and_lines_of_steps_come_once() -> None:
    lines = run("logging.basicConfig(level='INFO', format='%(message)s')", [1.0, 1.0]).stderr.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("step=")] == ["step=1", "step=2"]
    assert not [line for line in lines if line.startswith("step 1: loss")]
    assert len([line for line in lines if "zero_allow_untested_optimizer" in line]) == 1
    assert len(set(lines)) == len(lines)


def test_ranks_other_than_0_have_warnings_only(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(handler="logging.basicConfig(level='INFO', format='%(message)s')", factors="1.0, float('nan')"))
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command = [sys.executable, "-W", "ignore", *launch, str(script)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert len(re.findall("^step=1,", result.stderr, re.MULTILINE)) == 1, result.stderr
    assert result.stderr.count("zero_allow_untested_optimizer") == 1
    assert result.stderr.count("no update") == 2


@pytest.mark.parametrize("place", ["logging.getLogger('sluice')", "logging.getLogger()"])
def test_a_handler_that_raises_loses_no_line(place: str) -> None:
    handler = f"""
class Full(logging.Handler):
    def emit(self, record):
        if "no update" in record.getMessage():
            raise OSError("no room for the log")
{place}.addHandler(Full())
"""
    result = run(handler, [float("nan"), 1.0, float("nan")])
    assert re.findall(r"^sluice: step (\d): .* no update", result.stderr, re.MULTILINE) == ["1", "3"]
    assert result.stderr.count("no room for the log") == 2
