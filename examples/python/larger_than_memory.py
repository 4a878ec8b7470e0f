"""A Hugging Face model with weights and optimizer states on a drive; built, trained and measured.

python examples/python/larger_than_memory.py DRIVE_FOLDER [--layers 28] [--steps 3]

The shape is that of Qwen2-1.5B, with random weights: 1,543,714,304 parameters of 28 layers. The folder takes 22 GB.
"""

import argparse
import time

import sluice
import torch
from transformers import AutoModelForCausalLM, Qwen2Config


def peak_gib() -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**20


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", help="a directory of the drive")
parser.add_argument("--layers", type=int, default=28)
parser.add_argument("--width", type=int, default=1536)
parser.add_argument("--vocabulary", type=int, default=151936)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--tokens", type=int, default=32, help="of a step")
arguments = parser.parse_args()

drive = {"device": "nvme", "nvme_path": arguments.folder}
config = {
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 3, "offload_optimizer": drive, "offload_param": drive},
    "sluice": {"device": "host", "host_bytes": "96MiB"},
}
shape = Qwen2Config(
    vocab_size=arguments.vocabulary,
    hidden_size=arguments.width,
    intermediate_size=arguments.width * 35 // 6,
    num_hidden_layers=arguments.layers,
    num_attention_heads=arguments.width // 128,
    num_key_value_heads=max(arguments.width // 768, 1),
    tie_word_embeddings=True,
)
imported, begin = peak_gib(), time.perf_counter()
with sluice.zero.Init(config_dict_or_path=config):
    model = AutoModelForCausalLM.from_config(shape)
count = sum(parameter.numel() for parameter in model.parameters())
print(f"{count:,} parameters, built in {time.perf_counter() - begin:.0f} s", flush=True)
model.gradient_checkpointing_enable()
begin = time.perf_counter()
engine, _, _, _ = sluice.initialize(model=model, config=config)
print(f"on the drive in {time.perf_counter() - begin:.0f} s")
random = torch.Generator().manual_seed(0)
for step in range(arguments.steps):
    begin = time.perf_counter()
    ids = torch.randint(arguments.vocabulary, (1, arguments.tokens), generator=random)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    print(f"step {step + 1}: loss {loss.item():.3f}, {time.perf_counter() - begin:.0f} s", flush=True)
engine.destroy()
print(f"at most {peak_gib() - imported:.2f} GiB above the imports")
