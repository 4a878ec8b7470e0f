"""A Hugging Face causal language model with the Trainer. The script knows nothing of Sluice:

python -m sluice.as_deepspeed examples/python/trainer.py OUTPUT --deepspeed examples/python/ds_trainer.json [--steps 20]

Without --deepspeed it trains in memory. The model has random weights, and the text is made here.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments


class Text(torch.utils.data.Dataset):
    """Sequences in which each token is the one before it plus 1, 2 or 3."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(1, 4, (64,), generator=torch.Generator().manual_seed(index)).cumsum(0) % 256
        return {"input_ids": ids, "labels": ids}


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("output", help="a directory for checkpoints and weights")
parser.add_argument("--deepspeed", help="a DeepSpeed file")
parser.add_argument("--steps", type=int, default=20)
arguments = parser.parse_args()

args = TrainingArguments(
    arguments.output,
    deepspeed=arguments.deepspeed,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=arguments.steps,
    learning_rate=1e-3,
    warmup_steps=5,
    logging_steps=5,
    save_steps=10,
    gradient_checkpointing=True,
    report_to=[],
    use_cpu=True,
)
shape = LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4)
torch.manual_seed(0)
trainer = Trainer(AutoModelForCausalLM.from_config(shape), args, train_dataset=Text())
trainer.train()
trainer.save_model()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print(f"step {entry['step']}: loss {float(entry['loss']):.4f}")
