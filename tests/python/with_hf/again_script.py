"""A model that is evaluated, trained by two Trainers in turn, and retried by a smaller batch: again_script.py OUTPUT.

OUTPUT/plain.json has the losses without DeepSpeed, and OUTPUT/ds.json those with it. It knows nothing of Sluice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from data import Tokens, both
from optimizers_script import config
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config


def refuse_large(module: Any, args: Any, kwargs: Any) -> None:
    """A model with this hook has no memory for batches of more than two."""
    if module.training and len(kwargs["input_ids"]) > 2:
        raise RuntimeError("CUDA out of memory.")


def trainer_of(model: Any, output: str, stage: int | None, **arguments: Any) -> Trainer:
    if stage is not None:
        unset_hf_deepspeed_config()
        arguments["deepspeed"] = config({"gradient_clipping": "auto"})
        arguments["deepspeed"]["zero_optimization"]["stage"] = stage
        if stage < 3:
            del arguments["deepspeed"]["zero_optimization"]["offload_param"]
    args = TrainingArguments(
        output, learning_rate=1e-2, lr_scheduler_type="linear", logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
        seed=1, **{"max_steps": 4, "per_device_train_batch_size": 2, **arguments},
    )
    return Trainer(model, args, train_dataset=Tokens(20), eval_dataset=Tokens(4))


def losses_of(trainer: Trainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def train(output: str, kind: str) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    shape = LlamaConfig(vocab_size=500, max_position_embeddings=64, **sizes)
    stage = 3 if kind == "ds" else None
    model = LlamaForCausalLM(shape)
    trainer = trainer_of(model, output, stage)
    report = {"evaluated": [trainer.evaluate()["eval_loss"]]}
    for which in ("first", "second"):
        trainer.accelerator.free_memory()
        trainer = trainer_of(model, output, stage)
        report[which] = losses_of(trainer)
        report[f"evaluated after the {which}"] = [trainer.evaluate()["eval_loss"]]
    trainer.accelerator.free_memory()
    crowded = LlamaForCausalLM(shape)
    crowded.register_forward_pre_hook(refuse_large, with_kwargs=True)
    retried = {"auto_find_batch_size": True, "per_device_train_batch_size": 4}
    report["retried"] = losses_of(trainer_of(crowded, output, 2 if kind == "ds" else None, **retried))
    Path(output, f"{kind}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    both(train, *sys.argv[1:])
