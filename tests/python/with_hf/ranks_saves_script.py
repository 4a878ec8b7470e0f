"""Saves of several ranks of torchrun: ranks_saves_script.py trainer|plain|lora OUTPUT [DS_JSON].

trainer: the Trainer's at each step, of LoRA with a whole module that trains. plain, lora: the one at ZeRO-3 that Accelerate
documents, called by all ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import InitProcessGroupKwargs
from data import Tokens, llama_config
from hf_runs import zero_config
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

FILES = {"plain": "model.safetensors", "lora": "adapter_model.safetensors"}


def made(kind: str) -> Any:
    torch.manual_seed(0)
    base = LlamaForCausalLM(llama_config())
    return base if kind == "plain" else get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))


def save_by_trainer(output: str, ds_json: str) -> None:
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


def save_by_accelerate(kind: str, output: str) -> None:
    keys = {"optimizer": None, "scheduler": None, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    config = zero_config(train_batch_size=2, gradient_clipping=1.0, **keys)
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(deepspeed_plugin=plugin, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    model = made(kind)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    item = Tokens(2)[accelerator.process_index]
    accelerator.backward(model(**{name: value[None] for name, value in item.items()}).loss)
    optimizer.step()

    unwrapped = accelerator.unwrap_model(model)
    unwrapped.save_pretrained(
        output,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=accelerator.get_state_dict(model),
    )
    whole = unwrapped.state_dict()  # of all ranks
    assert all(value.device.type != "meta" for value in whole.values())
    saved = load_file(Path(output) / FILES[kind])
    assert saved
    for name, value in saved.items():
        of_model = name if kind == "plain" else name.removesuffix(".weight") + ".default.weight"
        assert torch.equal(value, whole[of_model]), name

    # Rank 0 has let go of its dict, and other ranks are not asked.
    accelerator.get_state_dict(model)
    try:
        unwrapped.save_pretrained(output, is_main_process=accelerator.is_main_process)
    except ValueError as error:
        print(f"rank {accelerator.process_index}: {error}", flush=True)
    # Nothing was made for rank 0 alone: all ranks read.
    model.save_16bit_model(output)
    unwrapped.save_pretrained(output, is_main_process=accelerator.is_main_process)
    accelerator.wait_for_everyone()
    print("end of a rank", flush=True)


def main(kind: str, output: str, ds_json: str = "") -> None:
    torch.set_num_threads(1)
    if kind == "trainer":
        save_by_trainer(output, ds_json)
    else:
        save_by_accelerate(kind, output)


if __name__ == "__main__":
    main(*sys.argv[1:])
