"""Steps of a Llama in plain PyTorch and by sluice.initialize, with an AdamW of two groups.

llama_loop_script.py OUTPUT PRECISION STEPS: OUTPUT has the losses of each side: plain, device, cpu, nvme. PRECISION: fp32 or bf16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sluice
import torch
from data import Tokens, llama_config
from transformers import LlamaForCausalLM

STEPS = int(sys.argv[3])


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    wide = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    narrow = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0, "lr": 2e-3}], lr=1e-3)


def rate(update: int) -> float:
    """Warm-up and decay: without a warm-up, Adam divides gradients that are rounding errors by their own size."""
    return min((update + 1) / 10, (STEPS - update) / (STEPS - 10))


def batches() -> Any:
    data = Tokens(2 * STEPS)
    for step in range(STEPS):
        yield torch.stack([data[2 * step + index]["input_ids"] for index in range(2)])


def config(tier: str, folder: str, precision: str) -> dict[str, Any]:
    made: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "sluice": {"device": "host"}}
    if precision == "bf16":
        made["bf16"] = {"enabled": True}
    if tier != "device":
        offload = {"device": tier, **({"nvme_path": folder} if tier == "nvme" else {})}
        made["zero_optimization"] = {"stage": 3, "offload_optimizer": offload, "offload_param": offload}
    return made


def main(output: str, precision: str, _: str) -> None:
    torch.set_num_threads(1)
    losses: dict[str, list[float]] = {}
    for side in ("plain", "device", "cpu", "nvme"):
        torch.manual_seed(0)
        model = LlamaForCausalLM(llama_config())
        optimizer = optimizer_of(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        engine = None
        if side != "plain":
            given = config(side, output, precision)
            engine = sluice.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=given)[0]
        losses[side] = []
        for ids in batches():
            if engine is None:
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            else:
                loss = engine(input_ids=ids, labels=ids).loss
                engine.backward(loss)
                engine.step()
            losses[side].append(loss.item())
        if engine is not None:
            engine.destroy()
    Path(output, "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(*sys.argv[1:])
