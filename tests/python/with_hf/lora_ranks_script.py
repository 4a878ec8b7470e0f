"""LoRA with a whole module that trains, over ranks of torchrun: lora_ranks_script.py OUTPUT DS_JSON. Saves at each step."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from data import Tokens, llama_config
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, Trainer, TrainingArguments


def main(output: str, ds_json: str) -> None:
    torch.set_num_threads(1)
    keys = {"per_device_train_batch_size": 1, "max_steps": 2, "save_strategy": "steps", "save_steps": 1, "report_to": []}
    args = TrainingArguments(output, deepspeed=ds_json, disable_tqdm=True, use_cpu=True, seed=1, **keys)
    torch.manual_seed(6)
    base = LlamaForCausalLM(llama_config())
    model = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]))
    trainer = Trainer(model, args, train_dataset=Tokens(8))
    trainer.train()
    trainer.save_model(output + "/final")
    trained = trainer.model_wrapped.module_state_dict()["base_model.model.lm_head.modules_to_save.default.weight"]
    if trainer.args.process_index == 0:
        saved = load_file(Path(output) / "final" / "adapter_model.safetensors")
        assert torch.equal(saved["base_model.model.lm_head.weight"], trained)
        print("saved as trained")


if __name__ == "__main__":
    main(*sys.argv[1:])
