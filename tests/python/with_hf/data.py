"""Parts that the scripts of these tests share: a Llama of four layers of 256, random tokens, and runs of both kinds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LlamaConfig

SEQUENCE = 32


def llama_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=500,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
    )


class Tokens(torch.utils.data.Dataset):
    """Sequences of random tokens, from a seed each."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count, self.seed = count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(self.seed + index)
        ids = torch.randint(0, 500, (SEQUENCE,), generator=random)
        return {"input_ids": ids, "labels": ids}


def both(train: Callable[[str, str], None], output: str) -> None:
    """Trains without DeepSpeed ("plain") and with it ("ds"), on one thread."""
    torch.set_num_threads(1)
    for kind in ("plain", "ds"):  # in this order, since DeepSpeed leaves a variable that Accelerate reads in the next run
        train(output, kind)
