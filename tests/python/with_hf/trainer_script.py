"""A script with the Trainer, as people write it.

trainer_script.py OUTPUT DS_JSON|none [ARGUMENTS_JSON] [RESUME_FROM] [-- OUTPUT ...]: a second course follows "--".
40 samples in 20 batches of 2, accumulation 3 (the last step of an epoch has two batches), 2 epochs: 14 steps. It knows
nothing of Sluice. OUTPUT/log.json is the Trainer's log, with the largest size of the process, and that after the imports.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import torch
from data import Tokens, llama_config
from transformers import LlamaForCausalLM, Trainer, TrainingArguments


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(output: str, ds_json: str, arguments: str = "{}", resume: str | None = None) -> None:
    imported = peak_bytes()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    given = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "warmup_steps": 3,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "save_strategy": "steps",
        "save_steps": 4,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 1,
        **json.loads(arguments),
    }
    only_evaluate = given.pop("only_evaluate", False)
    args = TrainingArguments(output, deepspeed=None if ds_json == "none" else ds_json, **given)
    model = LlamaForCausalLM(llama_config())
    trainer = Trainer(model, args, train_dataset=Tokens(40), eval_dataset=Tokens(6, 1000))
    if only_evaluate:
        log = [trainer.evaluate()]
    else:
        trainer.train(resume_from_checkpoint=resume)
        trainer.save_model(output + "/final")
        log = trainer.state.log_history
    Path(output, "log.json").write_text(json.dumps({"log": log, "peak_bytes": peak_bytes(), "imported_bytes": imported}))


if __name__ == "__main__":
    given = sys.argv[1:]
    while "--" in given:
        main(*given[: given.index("--")])
        given = given[given.index("--") + 1 :]
    main(*given)
