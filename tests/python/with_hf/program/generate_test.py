"""`sluice generate` takes the tokens that Transformers finds likeliest, also where positions run out."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch
import transformers
from sluice._program import PROGRAM

WINDOW, MADE = 32, 40


def likeliest(model: torch.nn.Module, prompt: bytes) -> list[int]:
    """By docs/cli.md: the last tokens of the prompt that have positions; then the last half of the positions, each time they run out."""
    context, made = list(prompt)[-WINDOW:], []
    for _ in range(MADE):
        made.append(int(model(torch.tensor([context])).logits[0, -1].argmax()))
        context = [*context, made[-1]] if len(context) < WINDOW else [*context, made[-1]][-(WINDOW // 2):]
    return made


@torch.no_grad()
def test_the_likeliest_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=WINDOW, vocab_size=256, initializer_range=0.3, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    model.double()
    for length in (4, WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW):
        prompt = ("sluice trains models that do not fit. " * 9)[:length]
        command = [PROGRAM, "generate", "--model", tmp_path / "config.json", "--weights", tmp_path / "model.safetensors"]
        options = ["--prompt", prompt, "--temperature", "0", "--max-new-tokens", str(MADE), "--json"]
        result = subprocess.run([*command, *options], capture_output=True, timeout=120, check=True)
        assert json.loads(result.stdout)["tokens"] == likeliest(model, prompt.encode()), length
        assert (b"its last 32 tokens count" in result.stderr) == (length > WINDOW), result.stderr
