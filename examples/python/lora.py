"""LoRA with PEFT and the Trainer: optimizer states for the adapters only, base weights that are read and never written.

python -m sluice.as_deepspeed examples/python/lora.py OUTPUT --deepspeed examples/python/ds_trainer.json [--steps 20]

The script knows nothing of Sluice. The base has random weights, and the text is made here.
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments


class Text(torch.utils.data.Dataset):
    """Sequences in which each token is the one before it plus 1, 2 or 3."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(1, 4, (64,), generator=torch.Generator().manual_seed(index)).cumsum(0) % 256
        return {"input_ids": ids, "labels": ids}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("output", help="a directory for the adapters")
parser.add_argument("--deepspeed", help="a DeepSpeed file")
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

args = TrainingArguments(
    arguments.output,
    deepspeed=arguments.deepspeed,
    per_device_train_batch_size=4,
    max_steps=arguments.steps,
    learning_rate=1e-2,
    logging_steps=5,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
)
shape = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4)
torch.manual_seed(0)
adapters = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
model = get_peft_model(AutoModelForCausalLM.from_config(shape), adapters)
model.print_trainable_parameters()
trainer = Trainer(model, args, train_dataset=Text())
trainer.train()
trainer.save_model()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']}: loss {float(entry['loss']):.4f}")
