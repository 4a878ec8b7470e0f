"""Configurations with every "auto", and runs of the scripts of this folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NONE: Mapping[str, str] = {}


def zero_config(drive: Path | None = None, **keys: Any) -> dict[str, Any]:
    """ZeRO-3 with every value that the Trainer knows left to it. ``drive``: states there. A key of None goes away."""
    offload = {"device": "cpu"} if drive is None else {"device": "nvme", "nvme_path": str(drive)}
    rates = ("total_num_steps", "warmup_min_lr", "warmup_max_lr", "warmup_num_steps")
    made: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": {key: "auto" for key in ("lr", "betas", "eps", "weight_decay")}},
        "scheduler": {"type": "WarmupDecayLR", "params": dict.fromkeys(rates, "auto")},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": offload,
            "offload_param": {"device": "cpu"},
            "overlap_comm": True,
            "contiguous_gradients": True,
            "sub_group_size": 1e9,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }
    made.update(keys)
    return {key: value for key, value in made.items() if value is not None}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "ds.json"
    path.write_text(json.dumps(config, indent=2))
    return path


def run(script: str, *arguments: object, provide: bool = True, ranks: int = 1, variables: Mapping[str, str] = NONE) -> str:
    """Runs a script of this folder, with the module deepspeed or without, over ranks of torchrun. Returns its output."""
    with socket.socket() as listening:  # scripts of two tests meet at ports of their own
        listening.bind(("127.0.0.1", 0))
        port = str(listening.getsockname()[1])  # of one process; torchrun takes a port that it listens at
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"] if ranks > 1 else []
    module = ["-m", "sluice.as_deepspeed"] if provide else []
    command = [sys.executable, *launcher, *module, str(HERE / script), *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "MASTER_PORT": port, **variables}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout + result.stderr


def log_of(output: Path) -> list[dict[str, Any]]:
    log: list[dict[str, Any]] = json.loads((output / "log.json").read_text())["log"]
    return log


def column(output: Path, key: str) -> list[float]:
    """The values of a key over the log, as loss, learning_rate, eval_loss."""
    return [entry[key] for entry in log_of(output) if key in entry]
