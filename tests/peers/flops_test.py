"""Multiply-accumulates of the flops profile beside torch's own count."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from monitors_test import MODEL, Run
from torch.utils.flop_counter import FlopCounterMode

MICRO_BATCH = 4


def counted_macs() -> float:
    """Of a forward of the model, with matrix products written out."""
    width, length, inner = MODEL["n_embd"], MODEL["n_positions"], 4 * MODEL["n_embd"]
    x = torch.randn(MICRO_BATCH, length, width)
    with FlopCounterMode(display=False) as counter:
        for _ in range(MODEL["n_layer"]):
            q, k, v = (x @ torch.randn(width, 3 * width)).split(width, -1)
            heads = [part.view(MICRO_BATCH, length, MODEL["n_head"], -1).transpose(1, 2) for part in (q, k, v)]
            scores = (heads[0] @ heads[1].transpose(-2, -1)).softmax(-1)
            x = (scores @ heads[2]).transpose(1, 2).reshape(MICRO_BATCH, length, width) @ torch.randn(width, width)
            x = (x @ torch.randn(width, inner)) @ torch.randn(inner, width)
        x @ torch.randn(width, MODEL["vocab_size"])
    return counter.get_total_flops() / 2


def row(text: str, name: str) -> float:
    found = re.search(re.escape(name) + r" *([\d.]+) ([TGMKmu]?)", text)
    assert found, name
    return float(found[1]) * {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1, "m": 1e-3, "u": 1e-6}[found[2]]


def test_the_profile_counts_what_torch_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, flops_profiler={"enabled": True, "profile_step": 5, "output_file": str(tmp_path / "flops.txt")})
    run.finish()
    profile = (tmp_path / "flops.txt").read_text()
    macs = counted_macs()
    assert abs(row(profile, "fwd MACs per GPU: ") / macs - 1) < 1e-2  # three digits are shown
    assert abs(row(profile, "fwd flops per GPU: ") / (2 * macs) - 1) < 1e-2
    step = run.steps()[5]
    latency = step["seconds"] / 2  # of two micro-batches
    assert abs(row(profile, "iter latency: ") / latency - 1) < 1e-2
    assert abs(row(profile, "/ iter latency: ") / (6 * macs / latency) - 1) < 2e-2
    parts = [row(profile, f"{part} latency: ") for part in ("fwd", "bwd", "step")]
    assert abs(sum(parts) / latency - 1) < 2e-2
    assert "2 blocks" in profile
