"""LoRA with PEFT and the Trainer: lora_script.py OUTPUT DS_JSON CHECKPOINTING(yes|no) [RESUME_FROM].

OUTPUT/report.json: losses, the engine's report, and what is true of the weights after training.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import torch
from data import SEQUENCE, Tokens, llama_config
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaForCausalLM, Trainer, TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config


def base_model() -> LlamaForCausalLM:
    model = LlamaForCausalLM(llama_config())
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.05 + (parameter.dim() == 1))
    return model


def loaded_logits(adapters: str, ids: torch.Tensor) -> torch.Tensor:
    """Logits of plain PyTorch, with the adapters that were saved."""
    unset_hf_deepspeed_config()
    model = PeftModel.from_pretrained(base_model(), adapters).eval()
    with torch.no_grad():
        return model(input_ids=ids).logits


def main(output: str, ds_json: str, checkpointing: str, resume: str | None = None) -> None:
    torch.set_num_threads(1)
    args = TrainingArguments(
        output,
        deepspeed=ds_json,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        warmup_steps=2,
        logging_steps=1,
        save_strategy="steps",
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        seed=1,
        gradient_checkpointing=checkpointing == "yes",
    )
    base = base_model()
    before = {name: value.clone() for name, value in base.state_dict().items()}
    torch.manual_seed(6)
    model = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    trainer = Trainer(model, args, train_dataset=Tokens(40))
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(output + "/final")
    engine = trainer.model_wrapped
    adapter_count = sum(p.ds_numel for p in model.parameters() if p.requires_grad)
    after = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): value
        for name, value in engine.module_state_dict().items()
        if "lora_" not in name
    }
    ids = torch.arange(SEQUENCE)[None]
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=ids).logits
    report = engine.report()
    with deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        merged = model.merge_and_unload()
    with torch.no_grad():
        difference = (merged(input_ids=ids).logits - logits).abs().max()
    engine.destroy()
    found = {
        "log": trainer.state.log_history,
        "rows": report["plan"]["rows"],
        "nvme_written_bytes": report["nvme_written_bytes"],
        "steps": engine.global_steps,
        "adapter_count": adapter_count,
        "base_is_unchanged": after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before),
        "logits_are_equal": torch.equal(logits, loaded_logits(output + "/final", ids)),
        "norm_of_logits": float(logits.norm()),
        "merging_changes_logits_by": float(difference),
    }
    Path(output, "report.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
