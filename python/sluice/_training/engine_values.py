"""Values of an engine under DeepSpeed's names; its weights as dicts and files; and its calls that train nothing."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
from torch import nn

from .full_state_dict import HOW_TO_LOAD
from .offloaded import OffloadedModel
from .report import Report
from .optimizer import SluiceOptimizer
from .saved.files import write_weights
from .shown.event_files import Monitor
from .watched_loop import WatchedLoop
from .._errors import wrong_type
from ..config import Config, Source, content_of, has_optimizer, section_of

if TYPE_CHECKING:
    from .._engine import Loop

_DEEPSPEEDS_OPTIMIZERS = ("adagrad", "adam", "adamw", "lion")
_APPROXIMATED = ("lamb", "onebitadam", "onebitlamb", "zerooneadam")  # by AdamW, where "approximate" is true


class EngineValues(nn.Module):
    """The part of an engine that trains nothing. Private: engines inherit it."""

    module: nn.Module
    global_rank: int
    world_size: int
    loop: WatchedLoop
    _configured: WatchedLoop | Loop  # has the values of the configuration: another loop than `loop` where the engine is a guest
    optimizer: SluiceOptimizer
    _offloaded: OffloadedModel
    _source: Source | Config
    _last: Any
    _step_applied: bool
    _optimizer_class: str | None
    _trains: bool  # it has an optimizer
    _is_guest: bool  # it computes over the model of another engine, which may train it

    def compile(  # type: ignore[override]
        self,
        backend: Any = "inductor",
        compile_kwargs: Mapping[str, Any] | None = None,
        schedule: Any = None,
        compiled_autograd_enabled: bool = False,
    ) -> None:
        """Compiles the units, each by itself: weights come and go between them.

        ``backend`` and ``compile_kwargs``: of torch.compile. Raises ValueError for a schedule of DeepCompile's passes, and
        for compiled autograd.
        """
        if schedule is not None or compiled_autograd_enabled:
            raise ValueError("units are compiled one by one, and backward is not: no schedule, no compiled_autograd_enabled")
        self._offloaded.compile_units({**(compile_kwargs or {}), "backend": backend})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of the step so far, and keeps the count of its micro-batches.

        Does nothing where no backward has come since the last step(), so a loop may call it after each micro-batch.
        """
        self.optimizer.zero_grad()

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as it was given: a copy of the dict, or what the file has."""
        return content_of(self._source)

    def _check_own(self, call: str) -> None:
        """Raises ValueError for a call that is of the engine which trains the model, where this is another one."""
        if self._is_guest:
            raise ValueError(
                f"{call}() is of the engine that the model had before: this one was made without an optimizer, and only computes over it"
            )

    def has_optimizer_section(self) -> bool:
        """Whether the configuration has an optimizer. Without one, and without a client's, the engine only computes."""
        return has_optimizer(self._source)

    def optimizer_name(self) -> str | None:
        """The class of the client's optimizer, or the "type" of the configuration's section; None without either.

        Types that DeepSpeed's own optimizers have are in small letters, as there: "adamw" for "AdamW", but "SGD". A type
        that AdamW approximates is "adamw".
        """
        kind: str | None = self._section("optimizer").get("type")
        if kind is not None and kind.lower() in _APPROXIMATED:
            return self._optimizer_class or "adamw"
        if kind is not None and kind.lower() in _DEEPSPEEDS_OPTIMIZERS:
            kind = kind.lower()
        return self._optimizer_class or kind

    def optimizer_params(self) -> dict[str, Any] | None:
        """``optimizer.params`` of the configuration."""
        return self._section("optimizer").get("params")

    def scheduler_name(self) -> str | None:
        """``scheduler.type`` of the configuration."""
        return self._section("scheduler").get("type")

    def scheduler_params(self) -> dict[str, Any] | None:
        """``scheduler.params`` of the configuration."""
        return self._section("scheduler").get("params")

    def _section(self, name: str) -> dict[str, Any]:
        return section_of(self._source, name)

    def steps_per_print(self) -> int | None:
        """Steps between lines in the log; None: no lines."""
        every: int | None = self.loop.steps_per_print
        return every

    def get_batch_info(self) -> tuple[int, int, int]:
        """Samples of a step, samples of a micro-batch, micro-batches of a step."""
        return self.train_batch_size(), self.train_micro_batch_size_per_gpu(), self.gradient_accumulation_steps()

    def get_mom(self) -> list[Any]:
        """Betas of the next update, or the momentum, by parameter group; 0 where the formula has neither."""
        return [group.get("betas", group.get("momentum", 0.0)) for group in self.optimizer.param_groups]

    def empty_partition_cache(self) -> None:
        """Does nothing: between passes no weights are gathered."""

    def train_batch_size(self) -> int:
        """Samples of a step."""
        return int(self._configured.train_batch_size)

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a micro-batch."""
        return int(self._configured.micro_batch_size)

    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a step."""
        return int(self._configured.accumulation_steps)

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Changes the number of samples of later steps, by changing their number of micro-batches.

        A micro-batch keeps its size. Files of monitors count the samples of the configuration's steps. Raises ValueError for
        a size that is no multiple of the ranks' micro-batches, and inside a step; TypeError for what is no number.
        """
        self._check_own("set_train_batch_size")
        each = self.train_micro_batch_size_per_gpu() * self.world_size
        if isinstance(train_batch_size, bool) or not isinstance(train_batch_size, (numbers.Real, SupportsIndex)):
            raise wrong_type("train_batch_size", train_batch_size, "a number of samples")
        if train_batch_size < 1 or train_batch_size % each != 0:
            raise ValueError(
                f"train_batch_size is {train_batch_size}: a step has a multiple of {each} samples, which the micro-batches of all ranks "
                f"have together ({self.train_micro_batch_size_per_gpu()} on each of {self.world_size})"
            )
        self.loop.set_accumulation_steps(int(train_batch_size) // each)

    @property
    def dp_world_size(self) -> int:
        """Ranks that share the data: all."""
        return self.world_size

    def gradient_clipping(self) -> float:
        """The largest norm of gradients; 0: no clipping."""
        return float(self._configured.clipping)

    def zero_optimization(self) -> bool:
        """Whether the configuration has a ZeRO stage above 0."""
        return self.zero_optimization_stage() > 0

    def zero_optimization_stage(self) -> int:
        """The stage of the configuration."""
        return int(self._configured.zero_stage)

    def zero_optimization_partition_weights(self) -> bool:
        """Whether the configuration has stage 3."""
        return self.zero_optimization_stage() == 3

    def zero_optimization_partition_gradients(self) -> bool:
        """Whether the configuration has stage 2 or 3."""
        return self.zero_optimization_stage() >= 2

    def zero_offload_optimizer(self) -> SimpleNamespace | None:
        """``zero_optimization.offload_optimizer`` of the configuration, with its keys as attributes; None without."""
        return self._offload_section("offload_optimizer", "cpu_offload")

    def zero_offload_param(self) -> SimpleNamespace | None:
        """``zero_optimization.offload_param`` of the configuration, with its keys as attributes; None without."""
        return self._offload_section("offload_param", "cpu_offload_param")

    def zero_cpu_offload(self) -> bool:
        """Whether the configuration has the optimizer's states in host memory."""
        return getattr(self.zero_offload_optimizer(), "device", None) == "cpu"

    def zero_use_cpu_optimizer(self) -> bool:
        """Whether the configuration has the optimizer's states in host memory or on a drive."""
        return getattr(self.zero_offload_optimizer(), "device", None) in ("cpu", "nvme")

    def _offload_section(self, name: str, deprecated: str) -> SimpleNamespace | None:
        zero = self._section("zero_optimization")
        section = zero.get(name, {"device": "cpu"} if zero.get(deprecated) is True else None)
        return None if section is None else SimpleNamespace(**{"device": "none", **section})

    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale follows overflows: in fp16, unless the configuration sets it."""
        return self.fp16_enabled() and not self._section("fp16").get("loss_scale")

    def wall_clock_breakdown(self) -> bool:
        """Whether a line of times follows each step."""
        return bool(self.loop.wall_clock_breakdown)

    @functools.cached_property
    def monitor(self) -> Monitor:
        """Writes a script's own values to the files of ``csv_monitor`` and ``tensorboard``."""
        return Monitor(self.config)

    def zero_gather_16bit_weights_on_model_save(self) -> bool:
        """True: weights can always be saved."""
        return True

    def bfloat16_enabled(self) -> bool:
        """Whether weights compute in bf16."""
        return self._offloaded.dtype == torch.bfloat16

    def fp16_enabled(self) -> bool:
        """Whether weights compute in fp16."""
        return self._offloaded.dtype == torch.float16

    def fp16_auto_cast(self) -> bool:
        """Whether floating-point arguments of the model become fp16: positional ones, as in DeepSpeed."""
        return self.fp16_enabled() and bool(self._section("fp16").get("auto_cast"))

    def get_data_types(self) -> tuple[torch.dtype, torch.dtype]:
        """Data types of the weights and of the sums of gradients."""
        return self._offloaded.dtype, self._offloaded.gradient_dtype

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def set_lr(self, lr: float) -> None:
        """Sets the rate of the next update in all parameter groups. A scheduler sets it again when it steps."""
        self._check_own("set_lr")
        self.optimizer.set_lr(lr)

    def get_global_grad_norm(self) -> float | None:
        """The norm of the last step, before clipping; None before the first.

        After a skipped step it may be non-finite, or finite where only the loss was not: :meth:`was_step_applied` tells.
        """
        return None if self._last is None else float(self._last.gradient_norm)

    def was_step_applied(self) -> bool:
        """Whether the last ``step()`` updated the weights: it ended a step, and did not overflow."""
        return self._step_applied

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self._offloaded.device

    @property
    def cur_scale(self) -> float:
        """The loss scale of the next backward; 1 without fp16."""
        return float(self.loop.loss_scale)

    def report(self) -> Report:
        """Bytes moved and seconds waited since initialize(), and the plan as data. Shows itself as a table."""
        return self._offloaded.report()

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """Copies of the weights, in the data type that computes, and of the buffers, by the model's names.

        ``destination``: the dict to put them in. ``prefix``: of their names. ``keep_vars``: the parameters themselves, which
        are empty between passes.
        """
        left_out = self._left_out(exclude_frozen_parameters)
        values: Mapping[str, Any] = self.module.state_dict(keep_vars=True) if keep_vars else self._offloaded.state_dict(left_out)
        made = {} if destination is None else destination
        made.update({prefix + name: value for name, value in values.items() if name not in left_out})
        return made

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override,unused-ignore]
        """As :meth:`module_state_dict`."""
        return self.module_state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ValueError: between passes the engine's parameters are empty, and nothing could be copied to them."""
        raise ValueError(HOW_TO_LOAD)

    def _left_out(self, exclude_frozen_parameters: bool) -> set[str]:
        """Names that a state dict leaves out."""
        if not exclude_frozen_parameters:
            return set()
        named = self.module.named_parameters(remove_duplicate=False)
        return {name for name, parameter in named if not parameter.requires_grad}

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """As :meth:`module_state_dict` on rank 0. None on the others, which hold the parameters of one unit at a time.

        ``save_pretrained()`` of Transformers or PEFT may follow on all ranks, with the dict on rank 0, and with
        ``is_main_process=False`` and None on the others. There it asks no other rank, if nothing of Sluice comes between.
        """
        found = self._on_first_rank(exclude_frozen_parameters)
        self._offloaded.state_dicts.note_consolidated()
        return found

    def _on_first_rank(self, exclude_frozen_parameters: bool) -> dict[str, Any] | None:
        left_out = self._left_out(exclude_frozen_parameters)
        found = self._offloaded.state_dict(left_out, keeps=self.global_rank == 0)
        return found if self.global_rank == 0 else None

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def save_16bit_model(
        self, save_dir: str, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        """Writes the weights to save_dir/save_filename with torch.save, or as safetensors by its ending. Returns True.

        Raises OSError with the path, where the disk is full for example.
        """
        weights = self._on_first_rank(exclude_frozen_parameters)
        if weights is not None:
            write_weights(save_dir, save_filename, weights)
        return True

    save_fp16_model = save_16bit_model
