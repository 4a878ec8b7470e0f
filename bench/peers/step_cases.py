"""The cases of step_peers.py: sides with their configurations, and bars."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paired import KIB, MIB, size_text

OPTIMIZER = {"lr": 1e-4, "weight_decay": 0.01}
# Bytes of a parameter's optimizer states, by the format of the master: two moments of 4 beside it.
STATE_BYTES = {"fp32": 12, "split": 10}


@dataclass(frozen=True)
class Settings:
    """Settings of DeepSpeed's configuration for NVMe that the search varies."""

    groups: int = 1  # sub-groups, which are read, updated and written one after the other
    block_size: int = MIB
    queue_depth: int = 32
    threads: int = 1  # intra_op_parallelism

    def __str__(self) -> str:
        blocks = f"{size_text(self.block_size)} x {self.queue_depth}"
        return f"{self.groups} sub-groups, blocks of {blocks}, {self.threads} threads"

    def swaps(self, parameters: int) -> bool:
        """A sub-group whose states are smaller than a block stays in memory, without a word."""
        return 4 * parameters // self.groups >= self.block_size

    def sub_group_size(self, parameters: int) -> int:
        return 10**9 if self.groups == 1 else parameters // self.groups  # 1e9 is the default

    def buffer_count(self, pipelined: bool) -> int:
        """The smallest that works: each holds a sub-group's master, a moment or gradient.

        Pipelined, one sub-group is read, one updated and one written; a single one wants a spare.
        """
        if not pipelined:
            return 4
        return 5 if self.groups == 1 else 12


SETTINGS_AXES = {
    "groups": [1, 3, 10],
    "block_size": [256 * KIB, MIB, 4 * MIB, 16 * MIB],
    "threads": [1, 2, 4],
    "queue_depth": [8, 32, 128],
}


@dataclass(frozen=True)
class Side:
    program: str  # torch, deepspeed, sluice or python (sluice.initialize): whose process it is
    optimizer: str = "none"  # where its states are: none (resident), cpu or nvme
    pipelined: bool = False  # of DeepSpeed: pipeline_read and pipeline_write
    master: str = "fp32"  # of Sluice
    cached: float = 0  # of Sluice: the share of the states on NVMe that host memory caches; in Python what its budget leaves
    lean: bool = False  # of Sluice: smaller budgets, with some activations computed again
    clipping: float = 0
    in_backward: bool = False  # of Python: optimizer_in_backward
    alone: bool = False  # of Sluice: each micro-batch passes the model by itself, as in a loop of the user's

    def __str__(self) -> str:
        if self.program == "torch":
            return "torch resident"
        words = ["sluice in Python" if self.program == "python" else self.program, self.optimizer]
        words += ["pipelined"] * self.pipelined
        words += [f"{self.master} master"] * (self.master != "fp32")
        words += ["cached" if self.program == "python" else f"{100 * self.cached:.0f} % cached"] * (self.cached > 0)
        words += ["lean"] * self.lean
        words += ["in backward"] * self.in_backward
        words += ["micro-batches alone"] * self.alone
        words += ["clipped"] * (self.clipping > 0)
        return " ".join(words)

    def configuration(self, parameters: int, swap: Path, settings: Settings, sequences: int) -> dict:
        """A DeepSpeed configuration, which Sluice reads too; PyTorch alone needs none of it."""
        offload: dict = {"device": self.optimizer}
        zero = {"stage": 3, "offload_optimizer": offload, "offload_param": {"device": "cpu"}}
        if self.optimizer == "nvme":
            offload["nvme_path"] = str(swap)
        configuration = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": sequences,
            "gradient_clipping": self.clipping,
            "optimizer": {"type": "AdamW", "params": OPTIMIZER},
            "bf16": {"enabled": True},
            "zero_optimization": zero,
        }
        if self.program == "sluice":
            configuration["sluice"] = self._own_keys(parameters)
        elif self.program == "python":
            configuration["sluice"] = self._python_keys(parameters)
        elif self.optimizer == "nvme":
            self._set(settings, parameters, configuration)
        return configuration

    def _python_keys(self, parameters: int) -> dict:
        keys = {"device": "host", "host_bytes": self._own_keys(parameters)["host_bytes"]}
        if self.in_backward:
            keys["optimizer_in_backward"] = True
        if self.cached > 0:
            keys |= {"host_bytes": 12 * parameters, "cache_bytes": "auto"}
        return keys

    def _own_keys(self, parameters: int) -> dict:
        """Only the lean side has a budget of the device: with it the host imitates a device, copies included."""
        keys: dict = {"host_bytes": "4GiB"}
        if self.optimizer == "nvme" and self.cached == 0:
            # Weights, and gradients of some units that wait for their updates.
            keys["host_bytes"] = max(128 << 20, int((2.65 if self.lean else 3.5) * parameters))
        if self.lean:  # activations of some units are kept
            keys["device_bytes"] = max(128 << 20, int(1.75 * parameters))
        if self.alone:
            keys["micro_batches_per_pass"] = 1
        if self.master != "fp32":
            keys["master"] = self.master
        if self.cached > 0:
            keys["cache_bytes"] = int(self.cached * STATE_BYTES[self.master] * parameters)
        return keys

    def _set(self, settings: Settings, parameters: int, configuration: dict) -> None:
        zero = configuration["zero_optimization"]
        zero["sub_group_size"] = settings.sub_group_size(parameters)
        zero["offload_optimizer"] |= {
            "buffer_count": settings.buffer_count(self.pipelined),
            "pipeline_read": self.pipelined,
            "pipeline_write": self.pipelined,
        }
        configuration["aio"] = {
            "block_size": settings.block_size,
            "queue_depth": settings.queue_depth,
            "intra_op_parallelism": settings.threads,
            "single_submit": False,
            "overlap_events": True,
        }


TORCH = Side("torch")
DEEPSPEED = {
    "cpu": Side("deepspeed", "cpu"),
    "nvme": Side("deepspeed", "nvme"),
    "pipelined": Side("deepspeed", "nvme", pipelined=True),
}
HOST = Side("sluice", "cpu")
NVME = Side("sluice", "nvme")
LEAN = Side("sluice", "nvme", lean=True)
SPLIT_CACHED = Side("sluice", "nvme", master="split", cached=0.5)
PYTHON = {"cpu": Side("python", "cpu"), "nvme": Side("python", "nvme")}
# As much memory as half of DeepSpeed's: it caches what the budget leaves.
PYTHON_CACHED = Side("python", "nvme", cached=0.5)
# The smallest process of each program, to subtract what the program itself takes.
IDLE = {"torch": TORCH, "deepspeed": DEEPSPEED["cpu"], "sluice": HOST, "python": PYTHON["cpu"]}


@dataclass(frozen=True)
class Case:
    """Bars on ratios of ours to the peer's: of tokens a second at least, of bytes at most."""

    name: str
    ours: Side
    peer: Side
    speed: float | None = None
    drive: float | None = None
    resident: float | None = None

    def __str__(self) -> str:
        return self.name


CASES = [
    Case("resident", HOST, TORCH),
    Case("cpu", HOST, DEEPSPEED["cpu"], speed=1.9, resident=0.5),
    Case("nvme", NVME, DEEPSPEED["nvme"], speed=2.2, drive=0.75, resident=0.25),
    Case("pipelined", LEAN, DEEPSPEED["pipelined"], speed=1.8, drive=0.75, resident=0.2),
    Case("nvme-cached", SPLIT_CACHED, DEEPSPEED["nvme"], speed=3.0, drive=0.75),
    Case("pipelined-cached", SPLIT_CACHED, DEEPSPEED["pipelined"], speed=3.0, drive=0.75),
    # The Python loop beside the C++ loop, and beside DeepSpeed. A loop of the user's updates after its backward pass, as
    # step() says; the C++ loop does so with clipping, and with it the two have one schedule.
    Case("python-loop", replace(PYTHON["cpu"], clipping=1.0), replace(HOST, clipping=1.0, alone=True), speed=0.95),
    Case("python-loop-nvme", replace(PYTHON["nvme"], clipping=1.0), replace(NVME, clipping=1.0, alone=True), speed=0.95),
    Case("python-cpu", PYTHON["cpu"], DEEPSPEED["cpu"], speed=1.5, resident=0.5),
    Case("python-in-backward", replace(PYTHON["cpu"], in_backward=True), DEEPSPEED["cpu"], speed=1.5, resident=0.5),
    Case("python-nvme-in-backward", replace(PYTHON["nvme"], in_backward=True), DEEPSPEED["nvme"], speed=1.9, resident=0.5),
    Case("python-nvme", PYTHON["nvme"], DEEPSPEED["nvme"], speed=1.9, resident=0.5),
    Case("python-nvme-cached", PYTHON_CACHED, DEEPSPEED["nvme"], speed=1.9, resident=0.5),
]
