"""Ranks of torchrun that share batches by Accelerate: ranks_script.py trainer|accelerate|environment SAYS_CPU OUTPUT DS_JSON.

environment: Accelerate reads the configuration's path there. SAYS_CPU: "cpu" for what a script writes where there is no GPU. Each rank prints the samples that it has seen.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import InitProcessGroupKwargs
from data import Tokens, llama_config
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

seen: list[int] = []


class Seen(Tokens):
    def __getitem__(self, index: int) -> Any:
        seen.append(index)
        return super().__getitem__(index)


def train_by_trainer(is_cpu: bool, output: str, ds_json: str) -> None:
    keys = {"per_device_train_batch_size": 1, "max_steps": 2, "save_strategy": "no", "report_to": []}
    args = TrainingArguments(output, deepspeed=ds_json, disable_tqdm=True, use_cpu=is_cpu, seed=1, **keys)
    Trainer(LlamaForCausalLM(llama_config()), args, train_dataset=Seen(8)).train()


def train_by_accelerate(is_cpu: bool, ds_json: str | None) -> None:
    handlers = [InitProcessGroupKwargs(backend="gloo")] if is_cpu else []
    plugin = DeepSpeedPlugin(hf_ds_config=json.loads(Path(ds_json).read_text())) if ds_json else None
    accelerator = Accelerator(kwargs_handlers=handlers, deepspeed_plugin=plugin)
    model = torch.nn.Linear(4, 4)
    loader = torch.utils.data.DataLoader(torch.arange(32.0).view(8, 4), batch_size=1)
    model, _, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    for batch in loader:
        seen.append(int(batch[0, 0]) // 4)
        accelerator.backward(model(batch).square().mean())
        model.step()


def main(by: str, says_cpu: str, output: str, ds_json: str) -> None:
    torch.set_num_threads(1)
    is_cpu = says_cpu == "cpu"
    try:
        if by == "trainer":
            train_by_trainer(is_cpu, output, ds_json)
        else:
            train_by_accelerate(is_cpu, ds_json if by == "accelerate" else None)
    except ValueError as error:
        print(f"refused: {error}")
    print(f"saw {sorted(set(seen))[:8]}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
