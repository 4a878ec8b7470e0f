"""GPT-2 as a user of PyTorch writes it, with the parameter names of Hugging Face.

As far as the comparison needs it: no dropout, the head tied to the embedding, GELU in its tanh
form, causal attention by PyTorch's own operator.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

# Hugging Face keeps these as (inputs, outputs), nn.Linear as (outputs, inputs).
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = self.c_attn(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, epsilon: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, epsilon)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, epsilon)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, model: dict) -> None:
        super().__init__()
        width, epsilon = model["n_embd"], model["layer_norm_epsilon"]
        self.wte = nn.Embedding(model["vocab_size"], width)
        self.wpe = nn.Embedding(model["n_positions"], width)
        blocks = (Block(width, model["n_head"], epsilon) for _ in range(model["n_layer"]))
        self.h = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(width, epsilon)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class Gpt2(nn.Module):
    """`model` is the file that `sluice train --model` takes, as a dictionary."""

    def __init__(self, model: dict) -> None:
        super().__init__()
        self.transformer = Transformer(model)
        self.lm_head = nn.Linear(model["n_embd"], model["vocab_size"], bias=False)
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy in fp32; tokens and targets (sequences, length)."""
        logits = self.lm_head(self.transformer(tokens))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Copies in weights with Hugging Face's names and shapes, all of them."""
        parameters = dict(self.named_parameters())
        if parameters.keys() != weights.keys():
            raise ValueError(f"other weights: {sorted(parameters.keys() ^ weights.keys())}")
        for name, parameter in parameters.items():
            weight = weights[name]
            parameter.copy_(weight.t() if name.endswith(TRANSPOSED) else weight)
