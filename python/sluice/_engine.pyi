"""The extension for training PyTorch modules (python/src/engine/). Private: sluice.engine is built of it.

Confined to the thread that trains. Every method that may wait releases the GIL.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import torch

def fail_at_exit() -> None:
    """Makes the exit code of this process 1 where it would be 0."""

class OutsideBudget:
    """While it lives, tensors that the thread makes on the CPU take nothing of `device_bytes`. They may outlive it."""

class LogLines:
    """The log of the extension from now on: python/src/engine/log_lines.hpp. Thread-safe."""

    def take(self) -> list[tuple[int, str]]:
        """Blocks until there are lines. None: the end. A line has its level: error 0, warn 1, info 2."""
    def end(self) -> None: ...

class DType(Enum):
    fp32 = ...
    bf16 = ...
    fp16 = ...

class StepResult:
    """The end of a step: engine/train/include/sluice/train/engine.hpp."""

    @property
    def updated(self) -> bool: ...
    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...
    @property
    def gradient_norm(self) -> float: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def loss_scale(self) -> float: ...

class Loop:
    """Units of a PyTorch module, and their training: engine/train/include/sluice/train/hooked_loop.hpp."""

    def __init__(
        self,
        path: str,
        text: str | None,
        tuned: Sequence[str],
        settings: Sequence[tuple[str, str]],
        resident: bool,
        resume: bool | None,
        gpu: int | None,
        ranks: Any,
        gather_ranks: Any,
    ) -> None:
        """`text`: the configuration, whose shown name is then `path`. `settings`: keys and JSON values over it.

        `gpu`: computes where the configuration leaves the device open.
        `ranks`, `gather_ranks`: objects over two process groups (_training/ranks.py), for two threads; None: one rank.
        """

    def add_unit(self, name: str, params: Sequence[tuple[str, torch.Tensor]], inside: Sequence[int]) -> int:
        """`inside`: units that are entered whenever this one is. Returns its index."""

    def initialize(self) -> None: ...
    def preview(self) -> None:
        """Plans in place of initialize(): then only plan_table, plan_json and choices are there."""

    def enter(self, unit: int, training: bool) -> None:
        """Gathers a unit: its parameters have their values until leave(). `training`: a backward follows.

        Raises ValueError for an index of no unit, Error or OSError where a copy has failed.
        """

    def leave(self, unit: int) -> None: ...
    def is_weight(self, tensor: torch.Tensor) -> bool:
        """Whether it aliases gathered weights: what it shows is gone after leave()."""

    def show(self, unit: int) -> None:
        """As enter(), for a look between passes: values and states can be read meanwhile, and forget_gradients() leaves the unit gathered."""

    def hide(self, unit: int) -> None:
        """Ends a show(). Tensors that alias the unit's weights keep their values after it.

        Raises RuntimeError where there is no memory for them; the unit is left all the same.
        """

    def begin_backward(self, groups: Sequence[Mapping[str, float]], is_last: bool | None) -> None:
        """`groups`: what end_step() will probably be given. `is_last` of its step: None counts the micro-batches of the configuration."""

    def begin_gradients(self, unit: int) -> None: ...
    def send_gradients(self, unit: int, awaited: Sequence[int]) -> None:
        """`awaited`: units whose backward this micro-batch may still have."""

    def add_loss(self, loss: torch.Tensor) -> None: ...
    def end_micro_batch(self) -> None: ...
    def forget_gradients(self) -> None: ...
    def end_step(self, groups: Sequence[Mapping[str, float]]) -> StepResult:
        """`groups`: by parameter group its values by name: lr, weight_decay, and beta1, beta2, eps, momentum, dampening.

        Empty: those of the configuration.
        """

    def scheduled_rate(self, update: int) -> float:
        """Rate of the configuration's schedule for an update, counted from 1."""

    def scheduled_betas(self, update: int) -> tuple[float, float] | None:
        """Betas of the configuration's schedule for an update; None where it leaves them alone."""

    def finish(self) -> None: ...
    def close(self) -> None:
        """Gives memory and files back; every other call is a ValueError from now on."""

    def parameter(self, name: str) -> torch.Tensor:
        """A copy in CPU memory, in the data type that computes. Here and below: ValueError for an unknown name, and inside
        a unit's forward or backward. Every rank calls it."""

    def parameters(self, names: Sequence[str]) -> list[torch.Tensor]:
        """As parameter(). Each unit is gathered once: ask for all of a unit at once."""

    def set_parameters(self, values: Mapping[str, torch.Tensor]) -> None:
        """On a drive each call writes all states of the units: give all parameters of a unit in one call."""

    def master(self, name: str) -> torch.Tensor: ...
    def set_master(self, name: str, values: torch.Tensor) -> None: ...
    def moment(self, name: str, index: int) -> torch.Tensor:
        """A state in fp32, in CPU memory, by its index in moment_names."""

    def set_moment(self, name: str, index: int, values: torch.Tensor) -> None: ...
    def gradient(self, name: str) -> torch.Tensor | None:
        """The sum of the step so far in CPU memory, times loss_scale and
        gradient_divisor. None before the first."""

    def set_gradient(self, name: str, values: torch.Tensor) -> None: ...
    @property
    def groups(self) -> list[tuple[list[str], dict[str, Any]]]: ...
    @property
    def moment_names(self) -> list[str]: ...
    def save_checkpoint(self, directory: str) -> None: ...
    def load_checkpoint(self, directory: str) -> int: ...
    @property
    def loaded_from(self) -> str:
        """The folder of the states that load_checkpoint() has loaded last."""

    def load_failed(self, directory: str) -> None:
        """What belongs to these states was not loaded: until another load_checkpoint() nothing is computed, saved or committed."""

    def counters(self) -> dict[str, Any]: ...
    @property
    def step(self) -> int: ...
    @property
    def updates(self) -> int: ...
    @property
    def speculates(self) -> bool:
        """Whether updates may begin before end_step()."""

    @property
    def updates_in_backward(self) -> bool:
        """Whether the last backward of a step updates the units."""

    @property
    def waits_for_step(self) -> bool:
        """Whether that of the step in progress has begun to, and no update has failed: end_step() is next."""

    @property
    def is_half_updated(self) -> bool:
        """Whether it has failed after some updates: weights and states are a mix of two steps."""

    @property
    def weights_version(self) -> int: ...
    @property
    def drops(self) -> int:
        """Grows when the gradients of the step so far are dropped."""
    @property
    def loss_scale(self) -> float: ...
    @property
    def gradient_divisor(self) -> float: ...
    @property
    def comms_logger(self) -> dict[str, Any]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def gradient_dtype(self) -> DType: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def accumulation_steps(self) -> int: ...
    @property
    def train_batch_size(self) -> int: ...
    @property
    def clipping(self) -> float: ...
    @property
    def zero_stage(self) -> int: ...
    @property
    def optimizer_values(self) -> dict[str, Any]: ...
    @property
    def has_schedule(self) -> bool: ...
    @property
    def drop_last(self) -> bool: ...
    @property
    def wall_clock_breakdown(self) -> bool: ...
    @property
    def steps_per_print(self) -> int | None: ...
    @property
    def notes(self) -> list[str]: ...
    @property
    def choices(self) -> list[str]: ...
    @property
    def device(self) -> str:
        """In torch's words: "cpu", "cuda:0"."""

    @property
    def plan_table(self) -> str: ...
    @property
    def plan_json(self) -> str: ...
