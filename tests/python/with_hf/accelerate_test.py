"""A loop with Accelerate follows plain PyTorch, saves and loads. Ranks share its batches, or the run is an error."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hf_runs import run, write_config, zero_config
from small_models import differences


@pytest.mark.parametrize("kind", ["json", "client"])
def test_a_loop_with_accelerate_follows_plain_pytorch(kind: str, tmp_path: Path) -> None:
    run("accelerate_script.py", tmp_path, kind)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["steps"] == 14  # two epochs of 20 batches: six steps of three, and one of two
    assert report["losses"][0] == report["plain"][0]
    assert differences(report["losses"], report["plain"]) < 1e-5
    assert report["difference"] < 1e-5
    assert report["changed"]
    assert report["loaded"]
    assert (tmp_path / "model.safetensors").is_file()


def seen_by(by: str, says_cpu: str, folder: Path) -> str:
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    keys: dict[str, Any] = {"scheduler": None} if by == "trainer" else {"optimizer": None, "scheduler": None}
    if by != "trainer":
        keys |= {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "train_batch_size": 2, "gradient_clipping": 1.0}
    ds_json = write_config(folder, zero_config(zero_optimization=zero, **keys))
    read = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(ds_json)}
    variables = read if by == "environment" else {}
    return run("ranks_script.py", by, says_cpu, folder / "output", ds_json, ranks=2, variables=variables)


@pytest.mark.parametrize("by", ["trainer", "accelerate"])
def test_ranks_on_cpus_that_would_see_equal_batches_are_an_error(by: str, tmp_path: Path) -> None:
    printed = seen_by(by, "", tmp_path)
    assert printed.count("refused: Accelerate counts 1 process, and this run has 2 ranks") == 2
    assert printed.count("TrainingArguments(use_cpu=True)") == printed.count('[InitProcessGroupKwargs(backend="gloo")]') == 2


@pytest.mark.parametrize("by", ["trainer", "accelerate", "environment"])
def test_ranks_on_cpus_share_the_batches_as_the_error_says(by: str, tmp_path: Path) -> None:
    printed = seen_by(by, "cpu", tmp_path)
    first, second = (set(found.split(", ")) for found in re.findall(r"saw \[([^]]+)\]", printed))
    assert first and second and not first & second


@pytest.mark.parametrize("kind", ["plain", "lora"])
def test_all_ranks_may_call_the_save_that_accelerate_documents(kind: str, tmp_path: Path) -> None:
    printed = run("ranks_saves_script.py", kind, tmp_path, ranks=2)
    assert printed.count("rank 0: save_pretrained() reads") == printed.count("Pass that dict as state_dict=") == 1
    assert printed.count("end of a rank") == 2
