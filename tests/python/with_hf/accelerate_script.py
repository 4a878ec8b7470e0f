"""A loop with Accelerate, and the loop of plain PyTorch beside it: accelerate_script.py OUTPUT json|client.

json: optimizer and scheduler are those of the configuration, by DummyOptim and DummyScheduler. client: the script's own.
OUTPUT/report.json has what both saw.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import DummyOptim, DummyScheduler
from torch import nn

PARTS, EPOCHS, WARMUP = 3, 2, 3


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 8))


def config(kind: str) -> dict[str, Any]:
    offload = {"device": "cpu"}
    made: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
    }
    if kind == "json":
        made["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
        warmup = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "warmup_type": "linear"}
        made["scheduler"] = {"type": "WarmupLR", "params": warmup}
    return made


def client_rate(update: int) -> float:
    """The factor of a linear warm-up after so many updates."""
    return min(1.0, update / WARMUP)


def json_rate(update: int) -> float:
    """That of DeepSpeed's WarmupLR, which begins with two updates at the least rate."""
    return client_rate(max(0, update - 1))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def train_plain(loader: Any, rate: Callable[[int], float]) -> tuple[list[float], nn.Module]:
    model = make()
    optimizer = optimizer_of(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    losses = []
    for _ in range(EPOCHS):
        batches = list(loader)
        for index, (x, y) in enumerate(batches):
            loss = (model(x) - y).square().mean()
            (loss / PARTS).backward()
            losses.append(loss.item())
            if (index + 1) % PARTS == 0 or index + 1 == len(batches):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    return losses, model


def main(output: str, kind: str) -> None:
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(3)
    data = torch.utils.data.TensorDataset(torch.randn(80, 64, generator=random), torch.randn(80, 8, generator=random))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    plain, plain_model = train_plain(loader, json_rate if kind == "json" else client_rate)

    plugin = DeepSpeedPlugin(hf_ds_config=config(kind), gradient_clipping=1.0)
    accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=PARTS)
    model = make()
    if kind == "json":
        optimizer: Any = DummyOptim(model.parameters(), lr=1e-2, weight_decay=0.1)
        schedule: Any = DummyScheduler(optimizer, warmup_num_steps=WARMUP)
    else:
        optimizer = optimizer_of(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, client_rate)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    for _ in range(EPOCHS):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = (model(x) - y).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    found: dict[str, Any] = {"losses": losses, "plain": plain, "steps": model.global_steps}

    state = os.path.join(output, "state")
    accelerator.save_state(state)
    weights = copy.deepcopy(accelerator.get_state_dict(model))
    accelerator.backward((model(data.tensors[0]) * 9).square().mean())  # another step, which loading undoes
    found["changed"] = any(not torch.equal(value, weights[name]) for name, value in model.module_state_dict().items())
    accelerator.load_state(state)
    loaded = accelerator.unwrap_model(model).state_dict()
    found["loaded"] = all(torch.equal(loaded[name], value) for name, value in weights.items())
    accelerator.save_model(model, output)
    found["difference"] = max(float((weights[n] - v).abs().max()) for n, v in plain_model.state_dict().items())
    Path(output, "report.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
