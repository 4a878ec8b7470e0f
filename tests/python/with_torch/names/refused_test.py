"""Names that docs/deepspeed_names.md calls refused are errors that give the reason of the page."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import REPOSITORY
from small_models import config, engine_of, make

import sluice
from sluice._refusals import reason_of

PAGE = (REPOSITORY / "docs" / "deepspeed_names.md").read_text()


def rows(fate: str) -> Iterator[tuple[str, str, str]]:
    """Heading, name and reason of each row with this fate."""
    heading = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            heading = line[3:]
        row = re.match(rf"\| `(\w+)` \| {fate} \| ?(.*?) ?\|$", line)
        if row:
            yield heading, row[1], row[2]


@pytest.fixture(scope="module")
def objects() -> Iterator[dict[str, Any]]:
    engine = engine_of(make(), config())
    made: dict[str, Any] = {
        "deepspeed.DeepSpeedEngine": engine,
        "deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3": engine.optimizer,
        "deepspeed.accelerator.get_accelerator()": sluice.accelerator.get_accelerator(),
        "deepspeed.checkpointing": sluice.checkpointing,
    }
    for heading, _, _ in rows(r"\w+"):
        if heading not in made:
            made[heading] = importlib.import_module("sluice" + heading.removeprefix("deepspeed"))
    yield made
    engine.destroy()


def test_a_refused_name_is_an_error_with_its_reason(objects: dict[str, Any]) -> None:
    refused = list(rows("refused"))
    assert len(refused) > 100
    for heading, name, reason in refused:
        assert reason
        with pytest.raises(AttributeError) as caught:
            getattr(objects[heading], name)
        assert reason in str(caught.value), (heading, name)


def test_a_refused_module_is_an_error_with_its_reason() -> None:
    code = "import sluice.as_deepspeed\nimport deepspeed.moe.layer"
    last = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False).stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: Sluice, which provides deepspeed in this process, has no module deepspeed.moe")
    assert reason_of("moe") in last


def test_what_scripts_do_most_is_not_refused() -> None:
    for name in ("initialize", "zero", "step", "get_lr", "module", "global_steps", "FusedAdam", "lr_scheduler"):
        assert reason_of(name) == ""


@pytest.mark.parametrize("name", ["utils.groups", "ops.sgd", "runtime.config", "runtime.engine", "runtime.base_optimizer"])
def test_a_module_says_why_it_has_no_such_name(name: str) -> None:
    with pytest.raises(AttributeError, match="no tensor parallelism"):
        _ = importlib.import_module(f"sluice.{name}").get_tensor_parallel_group
