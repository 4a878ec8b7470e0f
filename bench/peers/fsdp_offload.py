"""A side of row 6 of bench/gpu_rows.py, a process of its own: trains on one device with weights and
optimizer in host memory, by PyTorch's FSDP2 or by DeepSpeed's ZeRO-3.

    fsdp_offload.py SPEC.json

SPEC.json: `engine` (fsdp or deepspeed), `device` (cuda, or cpu, where nothing is offloaded, to show
that it runs), `model` and `data` (files), `micro_batch`, `accumulation`, `steps`,
`learning_rate`, `clipping` (0: none), `report` (a folder); for DeepSpeed also `zero_optimization`
(more of its settings) and `pin_memory`. Writes `steps.jsonl` into `report` as `sluice train` does: a
line when a step has ended, with its number, loss and seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from torch_gpt import Gpt2

SEED = 1
DEVIATION = 0.02  # of initial weights
TrainStep = Callable[[list[tuple[Tensor, Tensor]]], float]  # micro-batches to the mean loss


def start_group(device: str, folder: Path) -> None:
    """A process group of one: no port, no address."""
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    alone["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ.update(alone)
    store = torch.distributed.FileStore(str(folder / "store"), 1)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)


@torch.no_grad()
def fill(module: torch.nn.Module, device: str = "cpu") -> None:
    """Matrices only: norms have their ones. ``device``: draws; a GPU is faster than the CPU."""
    for parameter in module.parameters():
        if parameter.dim() > 1:
            parameter.copy_(torch.empty_like(parameter, device=device).normal_(std=DEVIATION))


def fsdp(spec: dict, model: dict) -> TrainStep:
    """fp32 weights, gradients and moments in host memory, bf16 on the device; fused AdamW."""
    device = spec["device"]
    module = Gpt2(model)
    fill(module)
    mesh = init_device_mesh(device, (1,))
    more = {"offload_policy": CPUOffloadPolicy()} if device == "cuda" else {}
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for block in module.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=precision, **more)
    fully_shard(module, mesh=mesh, mp_policy=precision, **more)
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=spec["learning_rate"], weight_decay=0.01, fused=True
    )

    def step(batches: list[tuple[Tensor, Tensor]]) -> float:
        losses = []
        for number, (tokens, targets) in enumerate(batches):
            module.set_requires_gradient_sync(number + 1 == len(batches))
            loss = module(tokens, targets) / len(batches)
            loss.backward()
            losses.append(loss.detach())
        if spec["clipping"]:
            torch.nn.utils.clip_grad_norm_(module.parameters(), spec["clipping"])
        optimizer.step()
        optimizer.zero_grad()
        return sum(loss.item() for loss in losses)

    return step


def deepspeed(spec: dict, model: dict) -> TrainStep:
    import deepspeed as library

    module = Gpt2(model)
    fill(module)
    where = {"device": "cpu", "pin_memory": spec["pin_memory"]}
    configuration = {
        "train_micro_batch_size_per_gpu": spec["micro_batch"],
        "gradient_accumulation_steps": spec["accumulation"],
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": spec["learning_rate"], "weight_decay": 0.01},
        },
        "bf16": {"enabled": True},
        "gradient_clipping": spec["clipping"],
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": where,
            "offload_param": where,
            **spec["zero_optimization"],
        },
    }
    engine, *_ = library.initialize(
        model=module, model_parameters=module.parameters(), config=configuration
    )

    def step(batches: list[tuple[Tensor, Tensor]]) -> float:
        losses = []
        for tokens, targets in batches:
            loss = engine(tokens, targets)
            engine.backward(loss)
            engine.step()
            losses.append(loss.detach())
        return sum(loss.item() for loss in losses) / len(losses)

    return step


class Text:
    """Windows of a file's bytes, at random."""

    def __init__(self, spec: dict, length: int) -> None:
        self.bytes = torch.frombuffer(bytearray(Path(spec["data"]).read_bytes()), dtype=torch.uint8)
        self.draw = torch.Generator().manual_seed(SEED)
        self.spec, self.length = spec, length

    def step(self) -> list[tuple[Tensor, Tensor]]:
        return [self.micro_batch() for _ in range(self.spec["accumulation"])]

    def micro_batch(self) -> tuple[Tensor, Tensor]:
        most = len(self.bytes) - self.length - 1
        starts = torch.randint(most, (self.spec["micro_batch"],), generator=self.draw).tolist()
        windows = torch.stack([self.bytes[at : at + self.length + 1] for at in starts])
        windows = windows.long().to(self.spec["device"])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    model = json.loads(Path(spec["model"]).read_text())
    report = Path(spec["report"])
    torch.manual_seed(SEED)
    start_group(spec["device"], report)
    step = {"fsdp": fsdp, "deepspeed": deepspeed}[spec["engine"]](spec, model)
    text = Text(spec, model["n_positions"])
    with (report / "steps.jsonl").open("w", buffering=1) as lines:
        begin = time.perf_counter()
        for number in range(1, spec["steps"] + 1):
            loss = step(text.step())
            if spec["device"] == "cuda":
                torch.cuda.synchronize()
            end = time.perf_counter()
            print(json.dumps({"step": number, "loss": loss, "seconds": end - begin}), file=lines)
            begin = end
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
