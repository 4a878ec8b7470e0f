"""What the tests of `sluice data tokenize` share."""

from __future__ import annotations

import array
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import tokenizers

END = "<|endoftext|>"
WORDS = ["alpha", "beta", "gamma", "Straße", "naïve", "日本語", "x = f(y);", "    indented", "1,234.5", "—"]


def lines(seed: int, count: int) -> str:
    draw = random.Random(seed)
    text = "".join(" ".join(draw.choices(WORDS, k=8)) + draw.choice(["\n", "\n\n", "\n  "]) for _ in range(count))
    return text


def saved_tokenizer(folder: Path) -> Path:
    """The folder, with a tokenizer in it."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([lines(seed, 200) for seed in range(5)], vocab_size=600, special_tokens=[END])
    made.save(str(folder / "tokenizer.json"))
    return folder


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice", "data", "tokenize", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def tokens(path: Path) -> list[int]:
    values = array.array("H" if path.suffix == ".bin" else "I")
    values.frombytes(path.read_bytes())
    return values.tolist()
