"""TRL's trainers, as people write them, without DeepSpeed and then with it: trl_script.py OUTPUT DS_JSON KIND...

KIND is sft, dpo, precomputed or grpo. dpo has a reference model beside the one that trains, and activations that are
computed again. precomputed is dpo whose model is its own reference, before it trains. grpo generates with the model that
trains. It knows nothing of Sluice.
OUTPUT/KIND/plain/log.json is the log of the trainer without DeepSpeed, and OUTPUT/KIND/offloaded/log.json that with it.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from data import llama_config
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer


def tokenizer_of(vocabulary: int) -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(vocabulary - 3))])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def text(seed: int, count: int = 12) -> str:
    return " ".join(f"w{(seed * 7 + i * i) % 50}" for i in range(count))


def reward(completions: list[str], **_: Any) -> list[float]:
    """More for words with low numbers."""
    return [-sum(float(word[1:]) for word in completion.split() if word[1:].isdigit()) / 1000 for completion in completions]


def train(kind: str, output: str, ds_json: str | None) -> None:
    torch.manual_seed(0)
    given = {
        "output_dir": output,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 5,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "bf16": False,
        "seed": 1,
        "deepspeed": ds_json,
        "use_cpu": True,
    }
    config = llama_config()
    model, tokenizer = LlamaForCausalLM(config), tokenizer_of(config.vocab_size)
    if kind == "sft":
        rows = [{"text": text(i)} for i in range(24)]
        args: Any = SFTConfig(**given, max_length=16)
        trainer: Any = SFTTrainer(model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    elif kind == "grpo":
        rows = [{"prompt": text(i, 4)} for i in range(24)]
        args = GRPOConfig(**given, num_generations=2, max_completion_length=6)
        trainer = GRPOTrainer(model, reward, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    else:
        rows = [{"prompt": text(i, 4), "chosen": text(i + 1, 6), "rejected": text(i + 2, 6)} for i in range(24)]
        args = DPOConfig(**given, max_length=24, precompute_ref_log_probs=kind == "precomputed")
        reference = None if kind == "precomputed" else copy.deepcopy(model)
        trainer = DPOTrainer(model, reference, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    trainer.train()
    trainer.save_model(output + "/final")
    Path(output, "log.json").write_text(json.dumps(trainer.state.log_history))
    trainer.accelerator.free_memory()


def main(output: str, ds_json: str, *kinds: str) -> None:
    torch.set_num_threads(1)
    # Without first: a run with DeepSpeed leaves a variable that Accelerate reads in the next.
    for side, given in (("plain", None), ("offloaded", ds_json)):
        for kind in kinds:
            train(kind, f"{output}/{kind}/{side}", given)
            unset_hf_deepspeed_config()


if __name__ == "__main__":
    main(*sys.argv[1:])
