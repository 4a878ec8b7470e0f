"""A GPT with ZeRO's stages and offload, by one script and four DeepSpeed files.

python examples/python/gpt.py --deepspeed_config examples/python/ds_zero1.json [--steps 20]

ds_zero1.json, ds_zero2.json: weights on the device, states in host memory. ds_zero3.json: both in host memory.
ds_infinity.json: both on a drive, in the folder gpt.swap.
The losses are equal to the last bit. The files name the CPU: without their "device", a GPU trains.
"""

import argparse
import os

import sluice
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 256, width: int = 128, layers: int = 4, heads: int = 4, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # as GPT-2

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=20)
sluice.add_config_arguments(parser)
arguments = parser.parse_args()

config = sluice.config.load(arguments.deepspeed_config)
folder = config.values.get("zero_optimization.offload_optimizer.nvme_path")
if folder is not None:
    os.makedirs(folder, exist_ok=True)  # Sluice makes none, since a path that is missing may be a drive that is not mounted

torch.manual_seed(0)
engine, _, _, _ = sluice.initialize(args=arguments, model=GPT())
random = torch.Generator().manual_seed(1)
for step in range(arguments.steps):
    losses = []
    for _ in range(engine.gradient_accumulation_steps()):
        # Text of a kind: each token is the one before it plus 1, 2 or 3.
        ids = (torch.randint(1, 4, (4, 65), generator=random).cumsum(1) % 256).to(engine.device)
        loss = engine(ids[:, :-1], ids[:, 1:])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    if step % 5 == 4 or step == arguments.steps - 1:
        print(f"step {engine.global_steps}: loss {sum(losses) / len(losses):.6f}")
engine.destroy()
