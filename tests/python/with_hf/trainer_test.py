"""The Trainer trains through the module deepspeed that Sluice provides, with its files, its rates and its losses."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from data import Tokens, llama_config
from hf_runs import column, log_of, run, write_config, zero_config
from small_models import differences
from transformers import LlamaForCausalLM

STEPS, WARMUP, RATE = 14, 3, 1e-3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every "auto" kept and states on a drive."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "drive").mkdir()
    run("trainer_script.py", folder / "output", write_config(folder, zero_config(folder / "drive")))
    return folder


def warmup_decay(update: int) -> float:
    """DeepSpeed's WarmupDecayLR after so many updates: logarithmic, then in a line."""
    done = update - 1
    if done < WARMUP:
        return RATE * math.log(done + 1) / math.log(WARMUP) if done >= 0 else 0.0
    return RATE * max(0.0, (STEPS - done) / (STEPS - WARMUP))


def test_the_rates_are_those_of_the_schedule(whole: Path) -> None:
    rates = column(whole / "output", "learning_rate")
    assert len(rates) == STEPS
    assert rates == pytest.approx([warmup_decay(update + 1) for update in range(STEPS)], abs=1e-12)


def test_the_output_folder_has_the_files_that_people_read(whole: Path) -> None:
    for step in (4, 8, 12, 14):
        names = {path.name for path in (whole / "output" / f"checkpoint-{step}").iterdir()}
        wanted = {"config.json", "model.safetensors", "trainer_state.json", "rng_state.pth", "latest", f"global_step{step}"}
        assert wanted <= names
        assert (whole / "output" / f"checkpoint-{step}" / "latest").read_text() == f"global_step{step}"
    assert {path.name for path in (whole / "output" / "final").iterdir()} >= {"config.json", "model.safetensors"}


def test_saved_weights_have_the_loss_of_the_last_evaluation(whole: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(whole / "output" / "final").eval()
    batches = [[Tokens(6, 1000)[index] for index in (first, first + 1)] for first in (0, 2, 4)]
    losses = []
    for batch in batches:
        ids = torch.stack([sample["input_ids"] for sample in batch])
        with torch.no_grad():
            losses.append(model(input_ids=ids, labels=ids).loss.item())
    assert sum(losses) / 3 == pytest.approx(column(whole / "output", "eval_loss")[-1], rel=1e-6)


def test_resuming_in_the_middle_of_an_epoch_gives_equal_losses(whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    shutil.copytree(whole / "output" / "checkpoint-4", output / "checkpoint-4")
    (tmp_path / "drive").mkdir()
    ds_json = write_config(tmp_path, zero_config(tmp_path / "drive"))
    run("trainer_script.py", output, ds_json, "{}", output / "checkpoint-4")
    for key in ("loss", "learning_rate", "eval_loss", "grad_norm"):
        assert column(output, key) == column(whole / "output", key)
    final = "final/model.safetensors"
    assert (output / final).read_bytes() == (whole / "output" / final).read_bytes()


def test_the_trainers_own_optimizer_and_schedule_follow_plain_pytorch(tmp_path: Path) -> None:
    """The Trainer's AdamW has two groups, with weight decay and without."""
    arguments = '{"lr_scheduler_type": "cosine", "save_strategy": "no", "weight_decay": 0.1}'
    ds_json = write_config(tmp_path, zero_config(optimizer=None, scheduler=None))
    run("trainer_script.py", tmp_path / "plain", "none", arguments, "--", tmp_path / "mine", ds_json, arguments)
    mine, plain = tmp_path / "mine", tmp_path / "plain"
    assert column(mine, "learning_rate") == pytest.approx(column(plain, "learning_rate"), abs=1e-12)
    assert column(mine, "loss")[0] == column(plain, "loss")[0]
    assert differences(column(mine, "loss"), column(plain, "loss")) < 1e-5
    assert differences(column(mine, "eval_loss"), column(plain, "eval_loss")) < 1e-5


def test_stage_2_saves_whole_weights_and_the_best_are_loaded_at_the_end(tmp_path: Path) -> None:
    arguments = '{"load_best_model_at_end": true, "save_total_limit": 2}'
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": "auto"}
    output = tmp_path / "output"
    run("trainer_script.py", output, write_config(tmp_path, zero_config(zero_optimization=zero)), arguments)
    evaluations = [entry for entry in log_of(output) if "eval_loss" in entry]
    best = min(evaluations, key=lambda entry: entry["eval_loss"])["step"]
    assert best != STEPS
    final = (output / "final" / "model.safetensors").read_bytes()
    assert final == (output / f"checkpoint-{best}" / "model.safetensors").read_bytes()
    assert len(final) > 4 * sum(p.numel() for p in LlamaForCausalLM(llama_config()).parameters())


def test_a_model_is_evaluated_without_training(tmp_path: Path) -> None:
    arguments = '{"only_evaluate": true}'
    ds_json = write_config(tmp_path, zero_config())
    run("trainer_script.py", tmp_path / "plain", "none", arguments, "--", tmp_path / "mine", ds_json, arguments)
    assert column(tmp_path / "mine", "eval_loss") == column(tmp_path / "plain", "eval_loss")
