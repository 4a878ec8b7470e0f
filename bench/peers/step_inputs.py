"""Inputs of every side of step_peers.py: the model, its initial weights, each step's tokens.

The weights are a safetensors file in Hugging Face naming, which `sluice train --init` takes. The
tokens are the bytes of a text, and the windows are those that `sluice train` draws from it.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torch_gpt import TRANSPOSED, Gpt2

SEED = 1
TEXT_BYTES = 4 << 20
DEVIATION = 0.02  # of initial weights


def shape_of(layers: int, width: int, heads: int, length: int) -> dict:
    """The file that `sluice train --model` takes, as a dictionary."""
    return {
        "model_type": "gpt2",
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_positions": length,
        "vocab_size": 256,
        "layer_norm_epsilon": 1e-5,
    }


def parameter_count(model: dict) -> int:
    """The head is the embedding."""
    width = model["n_embd"]
    block = 12 * width**2 + 13 * width
    return model["n_layer"] * block + (model["vocab_size"] + model["n_positions"] + 2) * width


@dataclass(frozen=True)
class Inputs:
    """The files, in one folder."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.json"

    @property
    def weights(self) -> Path:
        return self.folder / "weights.safetensors"

    @property
    def text(self) -> Path:
        return self.folder / "text.txt"

    def make(self, model: dict) -> Inputs:
        self.folder.mkdir()
        self.model.write_text(json.dumps(model))
        self.text.write_bytes(words(TEXT_BYTES))
        write_weights(self.weights, initial_weights(model))
        return self


def words(count: int) -> bytes:
    """Text with something to learn: words of a small made-up language, the frequent ones first."""
    draw = random.Random(SEED)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    language = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(500)]
    shares = [1 / rank for rank in range(1, len(language) + 1)]  # Zipf's law
    text = " ".join(draw.choices(language, shares, k=count // 2))
    return text[:count].encode()


def initial_weights(model: dict) -> dict[str, Tensor]:
    """Normal matrices, biases of 0, scales of 1; Hugging Face's names and shapes, fp32.

    All of them are bf16 numbers: DeepSpeed makes its fp32 master of 16-bit weights, so that it
    would begin elsewhere.
    """
    draw = torch.Generator().manual_seed(SEED)
    weights = {}
    with torch.device("meta"):
        parameters = dict(Gpt2(model).named_parameters())
    for name, parameter in parameters.items():
        shape = parameter.shape[::-1] if name.endswith(TRANSPOSED) else parameter.shape
        if len(shape) == 1:
            weights[name] = torch.full(shape, float(name.endswith(".weight")))
        else:
            normal = torch.randn(shape, generator=draw).mul_(DEVIATION)
            weights[name] = normal.bfloat16().float()
    return weights


def write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    """As safetensors: the header's length, the header in JSON, the tensors one after the other."""
    header, end = {}, 0
    for name, weight in weights.items():
        begin, end = end, end + weight.nbytes
        shape = list(weight.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for weight in weights.values():
            file.write(weight.numpy().tobytes())


def read_weights(path: Path) -> dict[str, Tensor]:
    """A file of write_weights."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header, begin = json.loads(data[8 : 8 + length]), 8 + length
    weights = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        count, offset = (last - first) // 4, begin + first
        flat = torch.frombuffer(data, dtype=torch.float32, count=count, offset=offset)
        weights[name] = flat.view(entry["shape"])
    return weights


def window(text: bytes, step: int, sample: int, length: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets, both (1, length), of a sample from 0 on of a step from 1 on, as Dataset::draw draws them."""
    start = random_of_sample(SEED, step, sample) * (len(text) - length) >> 64
    tokens = torch.tensor(list(text[start : start + length + 1]))
    return tokens[None, :-1], tokens[None, 1:]


def random_of_sample(seed: int, step: int, sample: int) -> int:
    """64 bits (engine/models/src/philox.cpp, philox_stream)."""
    windows = 2  # PhiloxDomain::windows
    state = philox((windows, 0, 0, 0), (low(seed), high(seed)))
    for number in (step, sample, 0, 0):
        state = philox((low(number), high(number), state[2], state[3]), state[:2])
    block = philox((0, 0, state[2], state[3]), state[:2])
    return block[1] << 32 | block[0]


def philox(x: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox 4x32-10 (Salmon et al. 2011)."""
    for round_number in range(10):
        first, second = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        keys = (low(key[0] + round_number * 0x9E3779B9), low(key[1] + round_number * 0xBB67AE85))
        x = (high(second) ^ x[1] ^ keys[0], low(second), high(first) ^ x[3] ^ keys[1], low(first))
    return x


def low(number: int) -> int:
    return number & 0xFFFFFFFF


def high(number: int) -> int:
    return number >> 32
