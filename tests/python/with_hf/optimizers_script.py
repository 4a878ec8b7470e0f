"""Optimizers of scripts that the Trainer hands to Accelerate, in turn: optimizers_script.py OUTPUT.

OUTPUT/plain.json has the losses of each without DeepSpeed, and OUTPUT/ds.json those with it, or an error.
It knows nothing of Sluice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from data import Tokens, both
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

KEPT = {"zero_force_ds_cpu_optimizer": False}
# Keys of the configuration, arguments of the Trainer, and class and values of an optimizer.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "sgd": ({}, {"optim": "sgd"}, None),
    "sgd, kept": (KEPT, {"optim": "sgd", "optim_args": "momentum=0.9,nesterov=True"}, None),
    "rmsprop": ({}, {"optim": "rmsprop"}, None),
    "rmsprop, kept": (KEPT, {"optim": "rmsprop"}, None),
    "adafactor": ({}, {"optim": "adafactor"}, None),
    "adagrad": ({}, {"optim": "adagrad"}, None),
    "adagrad, decaying": ({}, {}, (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 0.5, "initial_accumulator_value": 0.1})),
    "amsgrad": ({}, {}, (torch.optim.AdamW, {"lr": 1e-2, "amsgrad": True})),
    "maximize": ({}, {}, (torch.optim.Adam, {"lr": 1e-3, "maximize": True})),
}


def config(keys: dict[str, Any]) -> dict[str, Any]:
    offload = {"device": "cpu"}
    sizes = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    return {**sizes, "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload}, **keys}


def losses_of(output: str, name: str, plain: bool) -> list[float]:
    keys, arguments, optimizer = CASES[name]
    if not plain:
        arguments = {**arguments, "deepspeed": config(keys)}
    args = TrainingArguments(
        output, max_steps=5, learning_rate=1e-2, lr_scheduler_type="linear", logging_steps=1, save_strategy="no", report_to=[],
        disable_tqdm=True, per_device_train_batch_size=2, seed=1, **arguments,
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=500, max_position_embeddings=64, **sizes))
    trainer = Trainer(model, args, train_dataset=Tokens(20), optimizer_cls_and_kwargs=optimizer)
    trainer.train()
    if not plain:
        trainer.model_wrapped.destroy()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train(output: str, kind: str) -> None:
    report: dict[str, Any] = {}
    for name in CASES:
        try:
            report[name] = losses_of(output, name, kind == "plain")
        except (TypeError, ValueError) as error:
            report[name] = f"{type(error).__name__}: {error}"
        unset_hf_deepspeed_config()
    Path(output, f"{kind}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    both(train, *sys.argv[1:])
