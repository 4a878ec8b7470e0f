"""A side of row 10 of bench/gpu_rows.py, a process of its own: a loop in Python that trains a Llama with weights and optimizer
in host memory, by sluice.initialize, by DeepSpeed's ZeRO-3 or by PyTorch's FSDP2; or by plain PyTorch with everything on the device.

    llama_loop.py SPEC.json

SPEC.json: `engine` (sluice, deepspeed, fsdp or resident), `device` (cuda, or cpu, where FSDP2 offloads nothing, to show that it
runs), `model` (a dict of the fields of Shape), `sequences` (of a micro-batch), `accumulation` (micro-batches of a step),
`recompute` (whether blocks compute again in backward), `steps`, `folder` (on a drive, for weights while a model is built),
`report` (a folder), `ratio` (of Sluice's offload_optimizer), `trace` (a file for torch.profiler's trace of one more step, or
empty). All compute in bf16 and clip to a norm of 1.
Writes `steps.jsonl` into `report`, a line when a step has ended, with its number, loss and seconds, and the bytes that
PyTorch's allocator had at most; from Sluice also `report.json`, the engine's report.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fsdp_offload import fill, start_group
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SEED = 1
CLIPPING = 1.0
LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
LOSS_ROWS = 2048  # tokens whose logits are there at once
TrainStep = Callable[[list[Tensor]], list[Tensor]]  # ids of micro-batches, with the target of the last one, to their losses


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    inner: int
    heads: int
    groups: int  # heads of keys and values
    vocabulary: int
    length: int


class Linear(nn.Linear):
    """fill() gives it its values."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """fill() gives it its values."""

    def reset_parameters(self) -> None:
        pass


class Block(nn.Module):
    def __init__(self, shape: Shape, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.heads, self.groups = shape.heads, shape.groups
        size = shape.width // shape.heads
        self.norm1, self.norm2 = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.q, self.out = (Linear(shape.width, shape.width) for _ in range(2))
        self.k, self.v = (Linear(shape.width, shape.groups * size) for _ in range(2))
        self.gate, self.up = (Linear(shape.width, shape.inner) for _ in range(2))
        self.down = Linear(shape.inner, shape.width)

    def compute(self, x: Tensor, turn: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part, heads in ((self.q(y), self.heads), (self.k(y), self.groups), (self.v(y), self.groups))
        )
        q, k = turned(q, turn), turned(k, turn)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        return checkpoint(self.compute, x, turn, use_reentrant=False) if self.recompute else self.compute(x, turn)


def turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, eq. 34), halves as pairs. turn: (2, T, size / 2), cosines and sines."""
    low, high = x.chunk(2, -1)
    cosine, sine = turn.to(x.dtype)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def turns(shape: Shape, device: torch.device) -> Tensor:
    half = shape.width // shape.heads // 2
    rates = 10000.0 ** (-torch.arange(half, device=device) / half)
    angles = torch.arange(shape.length, device=device)[:, None] * rates
    return torch.stack((angles.cos(), angles.sin()))


class Head(nn.Module):
    """Norm, logits and loss, some tokens at a time, whose logits backward computes again."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(shape.width), Linear(shape.width, shape.vocabulary)

    def rows(self, x: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(self.linear(self.norm(x)).float(), targets, reduction="sum")

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        parts = zip(x.flatten(0, 1).split(LOSS_ROWS), targets.flatten().split(LOSS_ROWS))
        return sum(checkpoint(self.rows, *part, use_reentrant=False) for part in parts) / targets.numel()


class Llama(nn.Module):
    def __init__(self, shape: Shape, recompute: bool) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, recompute) for _ in range(shape.layers))
        self.head = Head(shape)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        turn = turns(self.shape, ids.device)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, turn)
        return self.head(x, targets)


def model_of(spec: dict) -> Llama:
    return Llama(Shape(**spec["model"]), spec["recompute"])


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, before: Callable[[bool], None]) -> TrainStep:
    """before: called with whether the micro-batch is the last one of its step."""

    def step(micro_batches: list[Tensor]) -> list[Tensor]:
        losses = []
        for number, ids in enumerate(micro_batches, 1):
            before(number == len(micro_batches))
            loss = model(ids[:, :-1], ids[:, 1:])
            (loss / len(micro_batches)).backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), CLIPPING)
        optimizer.step()
        optimizer.zero_grad()
        return losses

    return step


def resident(spec: dict) -> TrainStep:
    """Weights, gradients and moments in bf16 on the device: a bound, without the fp32 master that the others have."""
    model = model_of(spec).to(spec["device"], torch.bfloat16)
    fill(model, spec["device"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    return plain_step(model, optimizer, lambda last: None)


def fsdp(spec: dict) -> TrainStep:
    """fp32 weights, gradients and moments in host memory, bf16 on the device; fused AdamW."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    model = model_of(spec)
    fill(model, spec["device"])
    mesh = init_device_mesh(spec["device"], (1,))
    more: dict[str, Any] = {"offload_policy": CPUOffloadPolicy()} if spec["device"] == "cuda" else {}
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for unit in [*model.blocks, model.head, model]:
        fully_shard(unit, mesh=mesh, mp_policy=precision, **more)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    return plain_step(model, optimizer, model.set_requires_gradient_sync)


def zero3(spec: dict) -> TrainStep:
    """One script for DeepSpeed and for Sluice; ours builds the model in files of the drive."""
    where = {"device": "cpu", "pin_memory": spec["device"] == "cuda"}
    states = where | ({"ratio": spec["ratio"]} if spec["ratio"] != 1 else {})
    configuration: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": spec["sequences"],
        "gradient_accumulation_steps": spec["accumulation"],
        "gradient_clipping": CLIPPING,
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": states, "offload_param": where},
    }
    built: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if spec["engine"] == "sluice":
        import sluice as library

        on_drive = {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": spec["folder"]}}}
        built = library.zero.Init(config_dict_or_path=on_drive, dtype=torch.bfloat16)
        configuration["sluice"] = {"device": "cuda:0" if spec["device"] == "cuda" else "host"}
    else:
        import deepspeed as library  # type: ignore[no-redef]
    with built:
        model = model_of(spec)
    fill(model, spec["device"])
    engine, *_ = library.initialize(model=model, model_parameters=model.parameters(), config=configuration)

    def step(micro_batches: list[Tensor]) -> list[Tensor]:
        losses = []
        for ids in micro_batches:
            loss = engine(ids[:, :-1], ids[:, 1:])
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        if spec["engine"] == "sluice" and engine.global_steps == spec["steps"]:
            Path(spec["report"], "report.json").write_text(json.dumps(engine.report()))
        return losses

    return step


def trace(step: TrainStep, micro_batches: list[Tensor], path: str) -> None:
    """A step under PyTorch's profiler, which is slower for it; gzipped by the end of the file's name."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if micro_batches[0].is_cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        step(micro_batches)
        if micro_batches[0].is_cuda:
            torch.cuda.synchronize()
    profiler.export_chrome_trace(path)


SIDES = {"sluice": zero3, "deepspeed": zero3, "fsdp": fsdp, "resident": resident}


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    report = Path(spec["report"])
    torch.manual_seed(SEED)
    on_gpu = spec["device"] == "cuda"
    if on_gpu:
        torch.cuda.set_device(0)
    if spec["engine"] in ("deepspeed", "fsdp"):
        start_group(spec["device"], report)
    step = SIDES[spec["engine"]](spec)
    draw = torch.Generator().manual_seed(SEED)
    size = (spec["accumulation"], spec["sequences"], spec["model"]["length"] + 1)
    with (report / "steps.jsonl").open("w", buffering=1) as lines:
        begin = time.perf_counter()
        for number in range(1, spec["steps"] + 1):
            # Each token is the one before it plus 1, 2 or 3: there is something to learn.
            ids = torch.randint(1, 4, size, generator=draw).cumsum(-1) % spec["model"]["vocabulary"]
            losses = step(list(ids.to(spec["device"])))
            loss = torch.stack(losses).mean().item()
            end = time.perf_counter()
            allocated = torch.cuda.max_memory_allocated() if on_gpu else 0
            line = {"step": number, "loss": loss, "seconds": end - begin, "allocated_bytes": allocated}
            print(json.dumps(line), file=lines)
            begin = end
    if spec["trace"]:
        written = report / "trace.json.gz"
        trace(step, list(ids.to(spec["device"])), str(written))
        shutil.move(written, spec["trace"])  # whole, or not there
    if on_gpu:  # the script's own use of the GPU goes on
        assert torch.ones(1 << 20, device="cuda").sum().item() == 1 << 20


if __name__ == "__main__":
    main()
