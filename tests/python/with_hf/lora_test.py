"""PEFT's adapters train: states only for them, the base is never written, and they load in plain PyTorch."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_runs import run, write_config, zero_config
from peft import AdaLoraConfig, LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import sluice

LORA_R, LAYERS, HIDDEN, INNER = 16, 4, 256, 512
ADAPTERS = LAYERS * LORA_R * (4 * 2 * HIDDEN + 3 * (HIDDEN + INNER))  # of q, k, v, o and of gate, up, down
STATE_BYTES, WEIGHT_BYTES = 12, 4  # of an element: fp32 master and two moments; fp32


def lora(folder: Path, checkpointing: str, *resume: object) -> dict[str, Any]:
    (folder / "drive").mkdir()
    offload = {"device": "nvme", "nvme_path": str(folder / "drive")}
    zero = {"stage": 3, "offload_optimizer": offload, "offload_param": offload}
    ds_json = write_config(folder, zero_config(scheduler=None, zero_optimization=zero))
    run("lora_script.py", folder / "output", ds_json, checkpointing, *resume)
    report: dict[str, Any] = json.loads((folder / "output" / "report.json").read_text())
    return report


def losses(report: dict[str, Any]) -> list[float]:
    return [entry["loss"] for entry in report["log"] if "loss" in entry]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("lora")
    return folder / "output", lora(folder, "no")


def test_states_are_those_of_the_adapters_to_the_byte(plain: tuple[Path, dict[str, Any]]) -> None:
    report = plain[1]
    assert report["adapter_count"] == ADAPTERS
    states = [row for row in report["rows"] if row["component"] == "optimizer states"]
    assert [row["nvme"] for row in states] == [STATE_BYTES * ADAPTERS]


def test_the_base_is_never_written(plain: tuple[Path, dict[str, Any]]) -> None:
    report = plain[1]
    assert report["steps"] == 10
    assert report["nvme_written_bytes"] == report["steps"] * ADAPTERS * (STATE_BYTES + WEIGHT_BYTES)
    assert report["base_is_unchanged"]


def test_saved_adapters_give_equal_logits_in_plain_pytorch(plain: tuple[Path, dict[str, Any]]) -> None:
    output, report = plain
    assert report["logits_are_equal"]
    assert report["norm_of_logits"] > 0
    names = {path.name for path in (output / "final").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= names
    assert "model.safetensors" not in names


def test_adapters_are_merged_where_parameters_are_gathered(plain: tuple[Path, dict[str, Any]]) -> None:
    assert 0 < plain[1]["merging_changes_logits_by"] < 1e-4


def test_gradient_checkpointing_changes_no_bit(plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    assert losses(lora(tmp_path, "yes")) == losses(plain[1])


def test_a_resumed_run_has_equal_losses_and_adapters(plain: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    output, report = plain
    shutil.copytree(output / "checkpoint-4", tmp_path / "output" / "checkpoint-4")
    resumed = lora(tmp_path, "no", tmp_path / "output" / "checkpoint-4")
    assert losses(resumed) == losses(report)
    name = "final/adapter_model.safetensors"
    assert (tmp_path / "output" / name).read_bytes() == (output / name).read_bytes()


def test_ranks_save_modules_that_train_whole(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    ds_json = write_config(tmp_path, zero_config(scheduler=None, zero_optimization=zero))
    assert "saved as trained" in run("ranks_saves_script.py", "trainer", tmp_path / "output", ds_json, ranks=2)


def experts_model(checkpointing: bool, dtype: torch.dtype) -> PeftModel:
    torch.manual_seed(0)
    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4)
    base = MixtralForCausalLM(MixtralConfig(**sizes, num_key_value_heads=2, num_local_experts=4, max_position_embeddings=64))
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return get_peft_model(base, LoraConfig(r=2, target_modules=[], target_parameters=experts)).to(dtype)


def host_engine(model: PeftModel, dtype: torch.dtype) -> sluice.SluiceEngine:
    offload = {"device": "cpu"}
    source = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
        "bf16": {"enabled": dtype == torch.bfloat16},
        "sluice": {"device": "host", "threads": {"compute": 1}},
    }
    return sluice.initialize(model=model, config=source)[0]


def train_experts(engine: sluice.SluiceEngine, steps: int) -> list[float]:
    ids = torch.randint(0, 97, (2, 12), generator=torch.Generator().manual_seed(1))
    found = []
    for _ in range(steps):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_of_experts_train_and_resume(checkpointing: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """PEFT registers a parametrization in each forward, for the parameters that ``target_parameters`` names."""
    plain = experts_model(checkpointing, torch.float32)
    optimizer = torch.optim.AdamW([each for each in plain.parameters() if each.requires_grad], lr=1e-2, weight_decay=0.01)
    ids = torch.randint(0, 97, (2, 12), generator=torch.Generator().manual_seed(1))
    expected = []
    for _ in range(4):
        loss = plain(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    engine = host_engine(experts_model(checkpointing, dtype), dtype)
    losses = train_experts(engine, 2)
    engine.save_checkpoint(str(tmp_path))
    losses += train_experts(engine, 2)
    engine.destroy()
    assert losses == pytest.approx(expected, rel=1e-6 if dtype == torch.float32 else 1e-2)
    assert losses[0] > losses[-1]
    resumed = host_engine(experts_model(checkpointing, dtype), dtype)
    resumed.load_checkpoint(str(tmp_path))
    assert train_experts(resumed, 2) == losses[2:]
    resumed.destroy()


def adaptive_model() -> PeftModel:
    torch.manual_seed(0)
    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    base = LlamaForCausalLM(LlamaConfig(**sizes, max_position_embeddings=64))
    ranks = dict(init_r=6, target_r=2, total_step=8, tinit=1, tfinal=2, deltaT=1)
    return get_peft_model(base, AdaLoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], **ranks))


def test_adalora_shares_out_its_ranks_where_parameters_are_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads weights and gradients, and writes weights, between backward and step."""
    ids = torch.randint(0, 97, (2, 12), generator=torch.Generator().manual_seed(1))
    plain = adaptive_model()
    optimizer = torch.optim.AdamW([each for each in plain.parameters() if each.requires_grad], lr=1e-2, weight_decay=0.01)
    expected = []
    for step in range(6):
        loss = plain(input_ids=ids, labels=ids).loss
        loss.backward()
        plain.base_model.update_and_allocate(step + 1)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    monkeypatch.setattr("peft.tuners.adalora.layer.deepspeed_config", lambda: {})  # as in a Trainer with DeepSpeed
    monkeypatch.setitem(sys.modules, "deepspeed", sluice)
    model = adaptive_model()
    engine = host_engine(model, torch.float32)
    losses, zeroed = [], 0
    for step in range(6):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        with sluice.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
            model.base_model.update_and_allocate(step + 1)
            zeroed += sum(one.eq(0).sum().item() for name, one in model.named_parameters() if "lora_E" in name)
        engine.step()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-6)
    assert zeroed > 0
    engine.destroy()
    for name, one in plain.named_parameters():
        torch.testing.assert_close(model.get_parameter(name), one, rtol=1e-4, atol=1e-6)
