"""Compares the host optimizer with DeepSpeed's CPU Adam and PyTorch's fused AdamW, in one process.

bench/peers/README.md says what is compared and how; bench/peers/setup.sh makes what is needed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import direct_call
from peer_environment import HERE, REPOSITORY, torch, versions
from deepspeed.ops.op_builder import CPUAdamBuilder

from paired import KIB, MIB, Progress, machine, output_of
from rounds import Steps, alternate
from row_report import slices_line, text_table

LEARNING_RATE = 1e-6
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.999)
EPSILON = 1e-8
FACTOR = 0.5  # unscale and clip
# A slice of a small size repeats the step until it has lasted about this long.
SLICE_SECONDS = 0.05


class Shim:
    """sluice::cpu_adam by way of build/lib/libsluice_adam_shim.so (adam_shim.cpp)."""

    class Step(ctypes.Structure):
        _fields_ = [
            *((name, ctypes.c_void_p) for name in ("master", "low", "moment1", "moment2")),
            *((name, ctypes.c_void_p) for name in ("gradient", "weight")),
            ("count", ctypes.c_size_t),
            ("bf16_moments", ctypes.c_int),
            ("bf16_gradient", ctypes.c_int),
            ("learning_rate", ctypes.c_double),
            ("weight_decay", ctypes.c_double),
            ("gradient_factor", ctypes.c_float),
        ]

    def __init__(self, library: Path, threads: int) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.sluice_error.restype = ctypes.c_char_p
        self.library.sluice_kernel.restype = ctypes.c_char_p
        self.adamw = ctypes.cast(self.library.sluice_adamw, ctypes.c_void_p).value
        self.check(self.library.sluice_threads(threads))

    def check(self, status: int) -> None:
        if status != 0:
            sys.exit(f"adam_peer.py: {self.library.sluice_error().decode()}")

    def stepper(self, factor: float, **tensors: torch.Tensor) -> Callable[[int], None]:
        arguments = self.Step(
            **{name: tensor.data_ptr() for name, tensor in tensors.items()},
            count=tensors["gradient"].numel(),
            bf16_moments=tensors["moment1"].dtype == torch.bfloat16,
            bf16_gradient=tensors["gradient"].dtype == torch.bfloat16,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            gradient_factor=factor,
        )
        address = ctypes.addressof(arguments)
        call, adamw = direct_call.call, self.adamw

        def step(number: int) -> None:
            if call(adamw, address, number) != 0:
                self.check(-1)

        step.keeps = (arguments, tensors)  # they must live as long as their addresses
        return step


class Memory:
    """The arrays of every operation, of `count` parameters; made when first asked for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.tensors: dict[str, torch.Tensor] = {}

    def get(self, name: str, dtype: torch.dtype, value: float) -> torch.Tensor:
        if name not in self.tensors:
            self.tensors[name] = torch.full((self.count,), value, dtype=dtype)
        return self.tensors[name]

    def fp32(self) -> dict[str, torch.Tensor]:
        values = {"master": 1.0, "moment1": 1e-3, "moment2": 1e-6}
        return {name: self.get(f"{name}32", torch.float32, of) for name, of in values.items()}

    def bf16(self, *names: str) -> dict[str, torch.Tensor]:
        values = {"master": 1.0, "moment1": 1e-3, "moment2": 1e-6, "gradient": 1e-3, "weight": 1.0}
        return {name: self.get(f"{name}16", torch.bfloat16, values[name]) for name in names}

    def gradient32(self) -> torch.Tensor:
        return self.get("gradient32", torch.float32, 1e-3)

    def low(self) -> torch.Tensor:
        return self.get("low", torch.int16, 0)


def ours(shim: Shim, memory: Memory) -> dict[str, Callable[[int], None]]:
    fp32 = memory.fp32()
    split = memory.bf16("master", "gradient") | {"low": memory.low()}
    moments = {name: fp32[name] for name in ("moment1", "moment2")}
    return {
        "plain": shim.stepper(1.0, **fp32, gradient=memory.gradient32()),
        "offloaded": shim.stepper(FACTOR, **fp32, **memory.bf16("gradient", "weight")),
        "split": shim.stepper(FACTOR, **split, **moments),
        "bf16 moments": shim.stepper(FACTOR, **split, **memory.bf16("moment1", "moment2")),
    }


def torch_steps(memory: Memory) -> dict[str, Callable[[int], None]]:
    fp32 = memory.fp32()
    states = ([fp32["moment1"]], [fp32["moment2"]], [])
    gradient = memory.gradient32()
    number_of_step = torch.tensor(1.0)

    def fused(number: int) -> None:
        number_of_step.fill_(number)
        torch._fused_adamw_(
            [fp32["master"]], [gradient], *states, [number_of_step],
            lr=LEARNING_RATE, beta1=BETAS[0], beta2=BETAS[1], weight_decay=WEIGHT_DECAY,
            eps=EPSILON, amsgrad=False, maximize=False,
        )  # fmt: skip

    return {"plain": fused, "offloaded": offloaded(memory, gradient, fused)}


def deepspeed_steps(memory: Memory, operator: object) -> dict[str, Callable[[int], None]]:
    constants = (LEARNING_RATE, *BETAS, EPSILON, WEIGHT_DECAY)
    operator.create_adam(0, *constants, True, False)
    fp32 = memory.fp32()
    gradient = memory.gradient32()

    def updates(*arrays: torch.Tensor) -> Callable[[int], None]:
        return lambda number: operator.adam_update(0, number, *constants, True, *arrays)

    fp32_arrays = (fp32["master"], gradient, fp32["moment1"], fp32["moment2"])
    bf16 = memory.bf16("master", "gradient", "moment1", "moment2")
    plain = updates(*fp32_arrays)
    names = ("master", "gradient", "moment1", "moment2")
    return {
        "plain": plain,
        "offloaded": offloaded(memory, gradient, plain),
        "no master": updates(*(bf16[name] for name in names)),
    }


def offloaded(
    memory: Memory, gradient: torch.Tensor, update: Callable[[int], None]
) -> Callable[[int], None]:
    """Around an fp32 update what a step with 16-bit gradients and weights needs."""
    gradient16, weight16 = memory.bf16("gradient", "weight").values()
    master = memory.fp32()["master"]

    def step(number: int) -> None:
        gradient.copy_(gradient16)
        gradient.mul_(FACTOR)
        update(number)
        weight16.copy_(master)

    return step


@dataclass(frozen=True)
class Comparison:
    ours: str
    peer: str
    peers: str  # its operation
    bar: float

    def __str__(self) -> str:
        return f"{self.ours} / {self.peer}, {self.peers}"


LARGE = [
    Comparison("plain", "deepspeed", "plain", 1.0),
    Comparison("plain", "torch", "plain", 1.0),
    Comparison("offloaded", "deepspeed", "offloaded", 1.7),
    Comparison("offloaded", "torch", "offloaded", 1.7),
    Comparison("split", "deepspeed", "offloaded", 1.8),
    Comparison("split", "torch", "offloaded", 1.8),
    Comparison("bf16 moments", "deepspeed", "no master", 1.35),
]
IN_CACHE = [
    Comparison("plain", "deepspeed", "plain", 1.5),
    Comparison("plain", "torch", "plain", 1.5),
]


class Pace:
    """Billions of parameters a second of one operation; small ones are repeated to fill a slice."""

    def __init__(self, step: Callable[[int], None], count: int) -> None:
        self.step = step
        self.count = count
        self.steps = 0
        self.repeats = 2
        self()  # the first steps touch the memory
        self.repeats = max(1, round(SLICE_SECONDS * 1e9 * self() / count))

    def __call__(self) -> float:
        begin = time.perf_counter()
        for _ in range(self.repeats):
            self.steps += 1
            self.step(self.steps)
        return 1e-9 * self.repeats * self.count / (time.perf_counter() - begin)


def measure(
    comparisons: list[Comparison],
    sides: dict[str, dict[str, Callable[[int], None]]],
    count: int,
    rounds: int,
    steps: Steps,
) -> list[dict]:
    cases = {}
    for comparison in comparisons:
        peer = Pace(sides[comparison.peer][comparison.peers], count)
        ours = Pace(sides["sluice"][comparison.ours], count)
        cases[comparison] = {"ours": ours, "peer": peer, "again": peer}
    rates = alternate(cases, rounds, steps)
    return [slices_line(str(of), rates[of], of.bar, "Gparam/s") for of in comparisons]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every ratio, and the facts")
    parser.add_argument("--rounds", type=int, default=21, help="slices of each side (21)")
    parser.add_argument("--parameters", type=int, default=64 * MIB, help="67108864")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="all cores")
    parser.add_argument(
        "--library", type=Path, default=REPOSITORY / "build" / "lib" / "libsluice_adam_shim.so"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    operator = CPUAdamBuilder().load(verbose=False)
    progress = Progress()
    result = {
        "machine": machine(HERE),
        "versions": {
            "commit": output_of("git", "-C", REPOSITORY, "describe", "--always", "--dirty",
                                "--abbrev=12"),
            **versions(),
        },
        "command": shlex.join(sys.argv),
        "rounds": arguments.rounds,
        "parts": [],
    }  # fmt: skip
    parts = [
        (f"{arguments.parameters:,} parameters", arguments.parameters, arguments.threads, LARGE),
        ("64 KiB of parameters, one core", 16 * KIB, 1, IN_CACHE),
    ]
    for title, count, threads, comparisons in parts:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        shim = Shim(arguments.library, threads)
        memory = Memory(count)
        sides = {
            "sluice": ours(shim, memory),
            "torch": torch_steps(memory),
            "deepspeed": deepspeed_steps(memory, operator),
        }
        lines = measure(comparisons, sides, count, arguments.rounds, Steps(progress, title))
        progress.clear()
        kernel = shim.library.sluice_kernel().decode()
        part = {"title": f"{title}, {threads} threads, kernel {kernel}", "peer": "peer", "lines": lines}
        result["parts"].append(part)
        print(text_table(part), end="\n\n", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
