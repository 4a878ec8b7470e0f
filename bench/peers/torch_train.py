"""One side of step_peers.py, a process of its own: trains on PyTorch alone, on DeepSpeed, or on Sluice.

    torch_train.py SPEC.json

SPEC.json: `inputs` (the folder of step_inputs.Inputs), `steps`, `sequences` of a step, each a micro-batch, `report` (a folder), and either
`deepspeed` or `python`, a configuration, or `optimizer`, the arguments of AdamW. Writes `steps.jsonl` into
`report` as `sluice train` does: a line when a step has ended, with its number, loss and seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

SPEC = json.loads(Path(sys.argv[1]).read_text())
if "python" in SPEC:
    import sluice  # before PyTorch, as docs/python.md says

import torch
from torch import Tensor

from step_inputs import Inputs, read_weights, window
from torch_gpt import Gpt2

MicroBatches = list[tuple[Tensor, Tensor]]  # tokens and targets
TrainStep = Callable[[MicroBatches], Tensor]  # to the mean loss


def resident(module: Gpt2, weights: dict[str, Tensor], options: dict) -> TrainStep:
    """bf16 weights and gradients, fp32 master and moments, PyTorch's fused AdamW."""
    module.load(weights)
    masters = [parameter.detach().clone() for parameter in module.parameters()]
    module.bfloat16()
    parameters = list(module.parameters())
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW(masters, **options, fused=True)

    def step(micro_batches: MicroBatches) -> Tensor:
        losses = []
        for tokens, targets in micro_batches:
            loss = module(tokens, targets) / len(micro_batches)
            loss.backward()
            losses.append(loss.detach())
        with torch.no_grad():
            for master, parameter in zip(masters, parameters):
                master.grad.copy_(parameter.grad)
                parameter.grad = None
            optimizer.step()
            for master, parameter in zip(masters, parameters):
                parameter.copy_(master)
        return torch.stack(losses).sum()

    return step


def step_of(engine: torch.nn.Module) -> TrainStep:
    """A step by the methods that DeepSpeed's engines and Sluice's have."""

    def step(micro_batches: MicroBatches) -> Tensor:
        losses = []
        for tokens, targets in micro_batches:
            loss = engine(tokens, targets)
            engine.backward(loss)
            engine.step()  # updates after the last one
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    return step


def sharded(module: Gpt2, weights: dict[str, Tensor], configuration: dict) -> TrainStep:
    """DeepSpeed's engine, a process group of one."""
    from peer_environment import deepspeed

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_SIZE": "1"}
    os.environ.update(alone)
    store = torch.distributed.HashStore()  # no port, no address
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    module.load(weights)
    engine, *_ = deepspeed.initialize(
        model=module, model_parameters=module.parameters(), config=configuration
    )

    return step_of(engine)


def offloaded(module: Gpt2, weights: dict[str, Tensor], configuration: dict) -> TrainStep:
    """Sluice's engine."""
    module.load(weights)
    engine, *_ = sluice.initialize(model=module, config=configuration)

    return step_of(engine)


def train(step: TrainStep, inputs: Inputs, spec: dict, length: int) -> None:
    text = inputs.text.read_bytes()
    with (Path(spec["report"]) / "steps.jsonl").open("w", buffering=1) as lines:
        begin = time.perf_counter()
        for number in range(1, spec["steps"] + 1):
            loss = step([window(text, number, sample, length) for sample in range(spec["sequences"])]).item()
            end = time.perf_counter()
            print(json.dumps({"step": number, "loss": loss, "seconds": end - begin}), file=lines)
            begin = end


def main() -> None:
    inputs = Inputs(Path(SPEC["inputs"]))
    model = json.loads(inputs.model.read_text())
    module, weights = Gpt2(model), read_weights(inputs.weights)
    if "deepspeed" in SPEC:
        step = sharded(module, weights, SPEC["deepspeed"])
    elif "python" in SPEC:
        step = offloaded(module, weights, SPEC["python"])
    else:
        step = resident(module, weights, SPEC["optimizer"])
    del weights
    train(step, inputs, SPEC, model["n_positions"])


if __name__ == "__main__":
    main()
