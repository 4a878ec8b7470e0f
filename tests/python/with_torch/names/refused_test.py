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


LINES = {
    "from deepspeed import PipelineModule": "there are no pipelines",
    "from deepspeed import init_inference": "it is about inference",
    "from deepspeed import moe": "experts are ordinary modules",
    "from deepspeed.ops import lamb": "has the formulas that are there",
    "from deepspeed.runtime.engine import PipelineEngine": "there are no pipelines",
    "from deepspeed.runtime.activation_checkpointing.checkpointing import gather_partitioned_activations": "PyTorch keeps activations",
    "from deepspeed.pipe import LayerSpec": "there are no pipelines",
    "from deepspeed.runtime.data_pipeline.curriculum_scheduler import CurriculumScheduler": "the data and the layers",
    "from deepspeed.elasticity import compute_elastic_config": "continues on any number of ranks",
    "from deepspeed.ops.sparse_attention import SparseSelfAttention": "attention is that of the model",
    "from deepspeed.comm import mpi_discovery": "start them",
    "from deepspeed.launcher.runner import fetch_hostfile": "ACCELERATE_DEEPSPEED_CONFIG_FILE=ds.json give Accelerate the file",
    "from deepspeed import nothing_that_is_known": "has no deepspeed.nothing_that_is_known (docs/from_deepspeed.md)",
}


def test_an_import_says_why_there_is_no_such_name() -> None:
    code = ["import sluice.as_deepspeed"]
    for line in LINES:
        code += ["try:", f"    {line}", "except ImportError as error:", "    print(error)", "else:", "    print('imported')"]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, timeout=180, check=True)
    for (line, reason), said in zip(LINES.items(), done.stdout.splitlines(), strict=True):
        assert reason in said, line


def test_a_name_that_is_missing_is_an_error_of_its_use() -> None:
    assert not hasattr(sluice, "PipelineModule")
    with pytest.raises(AttributeError, match="no pipelines"):
        _ = sluice.PipelineModule
    with pytest.raises(ImportError, match="no pipelines"):
        from sluice import PipelineModule  # noqa: F401


@pytest.mark.parametrize("name", ["example_input", "samples", "scalars", "lambda_of", "dollars", "mpi", "sequence_length"])
def test_a_part_of_a_word_is_no_reason(name: str) -> None:
    assert reason_of(name) == ""


def test_what_scripts_do_most_is_not_refused() -> None:
    for name in ("initialize", "zero", "step", "get_lr", "module", "global_steps", "FusedAdam", "lr_scheduler"):
        assert reason_of(name) == ""


@pytest.mark.parametrize("name", ["utils.groups", "ops.sgd", "runtime.config", "runtime.engine", "runtime.base_optimizer"])
def test_a_module_says_why_it_has_no_such_name(name: str) -> None:
    with pytest.raises(AttributeError, match="no tensor parallelism"):
        _ = importlib.import_module(f"sluice.{name}").get_tensor_parallel_group
