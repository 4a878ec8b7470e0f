"""Engines with DeepSpeed's interface: :func:`initialize` wraps a model, and the engine trains it."""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ._environment.launcher import local_rank
from ._refusals import missing, reason_of
from ._training import batches, ranks
from ._training.engine_module import read_beside
from ._training.frozen import frozen, left_out_frozen
from ._training.passes.divided import divided_outputs
from ._training.passes.interrupts import interrupts_later
from ._training.passes.layers import Layers
from ._training.offloaded import OffloadedModel
from ._training.owners import made_of, make_way
from ._training.optimizer import SluiceOptimizer, follow
from ._training.saved.engine_checkpoints import EngineCheckpoints
from ._training.saved.optimizers import warn_of_scheduler
from ._training.schedule import scheduler_of, step_of
from ._training.shown.aside_notes import note_tensor_aside
from ._training.shown.memory_notes import note_held_memory
from ._training.shown.step_times import StepTimes
from ._training.shown.throughput import ThroughputTimer
from ._training.start.client import Client, client_of
from ._training.units import Choice
from .config import Config, Source

__all__ = ["SluiceEngine"]

log = logging.getLogger("sluice")

Schedule = Any  # a scheduler object, or a function that makes one from an optimizer


class SluiceEngine(EngineCheckpoints):
    """Trains a model over memory tiers, with the methods of DeepSpeed's engine. Made by :func:`sluice.initialize`.

    One thread at a time calls it. After an error in forward the step goes on with its next micro-batch; after an error in backward
    the gradients of the step are dropped, which is logged.
    """

    def __init__(
        self,
        model: nn.Module,
        source: Source | Config,
        *,
        optimizer: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
        model_parameters: Iterable[Any] | None = None,
        lr_scheduler: Schedule | None = None,
        training_data: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        units: Choice = None,
        resume: bool | None = None,
        progress: bool = False,
    ) -> None:
        super().__init__()
        self._source = source
        self._trains = optimizer is not None or self.has_optimizer_section()
        client = client_of(optimizer, model_parameters, model, source) if self._trains else Client()
        self.client_optimizer, self.client_lr_scheduler = client.optimizer, lr_scheduler
        self._optimizer_class = None if client.optimizer is None else type(client.optimizer).__name__
        self.module, self.collate_fn = model, collate_fn
        self.global_rank, self.world_size = ranks.rank(), ranks.world_size()
        self.local_rank = local_rank()
        if self._trains:
            make_way(model)
        live = None if self._trains else made_of(model)
        self._is_guest = live is not None
        with contextlib.ExitStack() as entered:
            if live is not None:
                if units is not None or resume is not None:
                    raise ValueError("units and resume are those of the engine that the model has already, over which this one computes")
                self._configured = read_beside(source, live.dtype)
                live.renew_hooks()
                self._offloaded = live
            else:
                left_out = entered.enter_context(left_out_frozen(model, client.groups) if self._trains else frozen(model))
                self._offloaded = OffloadedModel(
                    model,
                    source,
                    optimizer=client.section,
                    groups=client.groups,
                    has_schedule=self._trains and lr_scheduler is None,
                    units=units,
                    resume=resume,
                    progress=progress,
                    only_computes=not self._trains,
                )
                entered.enter_context(self._offloaded.undone_on_error())
                self._configured = self._offloaded.loop
                self._offloaded.frozen, self._offloaded.user = left_out, weakref.ref(self)
            self.loop = self._offloaded.loop
            if live is None:
                self.loop.boundary_by(weakref.WeakMethod(self._ends_step))
            self.optimizer = SluiceOptimizer(self, self._offloaded, client.optimizer, client.groups)
            schedule = None if client.groups is None else self._section("scheduler")
            has_schedule = self._trains or lr_scheduler is not None
            self.lr_scheduler = scheduler_of(lr_scheduler, self.optimizer, self.loop, schedule) if has_schedule else None
            warn_of_scheduler(self.lr_scheduler, self.loop)
            self.training_dataloader = None if training_data is None else self.deepspeed_io(training_data)
        follow(client.optimizer, self.optimizer)
        self._reset_counters()

    def _reset_counters(self) -> None:
        """Counters and timers of an engine that has taken no step here."""
        self._steps_counted, self._steps_before = int(self.loop.step), 0
        self.micro_steps, self.skipped_steps = 0, 0
        self.global_samples = self.global_steps * self.train_batch_size()
        self.loss: torch.Tensor | None = None
        self._boundary: bool | None = None  # set by set_gradient_accumulation_boundary()
        self._not_synced = False
        self._times = StepTimes(self.device, self.loop.wall_clock_breakdown)
        self.tput_timer = ThroughputTimer()
        self._casts = self.fp16_auto_cast()
        self._last: Any = None
        self._step_applied = False

    # Passes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward. Raises ValueError after destroy().

        A backward that the script begins itself, as ``loss.backward()``, divides gradients of the output by the micro-batches.
        """
        self.loop.check_open()
        if torch.is_grad_enabled():
            self.tput_timer.start()
        try:
            with self._times.of("fwd") if torch.is_grad_enabled() else contextlib.nullcontext():
                output = self.module(*self._cast(args), **kwargs)
            return output if self._offloaded.only_computes else divided_outputs(output, self._offloaded.hooks, (args, kwargs))
        except BaseException as error:
            self._offloaded.hooks.leave_forwards()
            note_held_memory(error, self.loop, self.device)
            raise

    def _cast(self, inputs: Any) -> Any:
        return batches.cast_floating(inputs, torch.float16) if self._casts else inputs

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Backward of a scalar loss: divided by the micro-batches of a step, times the loss scale of fp16.

        ``scale_wrt_gas`` False: not divided. Returns the divided loss. Raises ValueError for a loss that is no scalar
        or depends on no parameter, and in an engine over the model of another one.
        """
        self._check_own("backward")
        batches.check_loss(loss, self._trains)
        count = self.gradient_accumulation_steps()
        divided = loss / count if scale_wrt_gas else loss
        with self._offloaded.hooks.announced("a backward"):
            scaled = self._scaled(loss if scale_wrt_gas else loss * count, divided)
            try:
                with self.loop.scaled(), self._times.of("bwd"):
                    scaled.backward(retain_graph=retain_graph)
            except BaseException as error:
                self._offloaded.hooks.drop_failed()
                note_held_memory(error, self.loop, self.device)
                note_tensor_aside(error)
                raise
        self.loss = divided.detach()
        return divided

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """A scalar loss times the loss scale of fp16, for ``engine.scale(loss).backward()``. Raises ValueError as :meth:`backward`."""
        self._check_own("scale")
        batches.check_loss(loss, self._trains)
        return self.loop.scaled_loss(loss)

    def _scaled(self, loss: torch.Tensor, divided: torch.Tensor) -> torch.Tensor:
        """Counts a loss for the step. Returns what its backward begins with."""
        self.loop.add_loss(loss)
        return divided.float() * self.loop.loss_scale

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Ends a micro-batch. At the boundary of a step: norm, clipping, updates, and the scheduler's step.

        The updates run on the host during the next forward. ``lr_kwargs``: arguments of the scheduler's step(), as
        ``{"metrics": loss}``. Raises RuntimeError inside :meth:`no_sync`, ValueError in an engine over the model of another one,
        and TypeError, before the update, where the scheduler's step() needs other arguments.
        """
        self._check_own("step")
        self.loop.check_open()
        if self._not_synced:
            raise RuntimeError("step() inside no_sync(): leave the context first")
        self._offloaded.hooks.recover_between_passes()  # the step begins anew after a backward that failed
        at_boundary = self.is_gradient_accumulation_boundary()
        self._step_applied = False
        self.micro_steps += 1
        self.loop.micro_batches.count()
        if not at_boundary:
            self.loop.micro_batches.go_on()
            self.tput_timer.stop(0)
            return
        before = self._last
        try:
            with interrupts_later():
                with self._times.of("step"):
                    self.optimizer.with_hooks(functools.partial(self._end_step, lr_kwargs))
                self._times.end_step()
                self.tput_timer.stop(self.train_batch_size())
        except BaseException:
            if self._last is before:  # the step has not ended, so its caller may mend the cause and step again
                self.micro_steps -= 1
                self.loop.micro_batches.take_back()
            raise

    def _end_step(self, lr_kwargs: Mapping[str, Any] | None) -> None:
        scheduler, has_loss = self.lr_scheduler, self.loop.micro_batches.has_loss
        step_scheduler = None if scheduler is None else step_of(scheduler, lr_kwargs or {}, self.train_batch_size())
        is_empty = not self.loop.micro_batches.has_gradients and ranks.world_size() == 1  # one of several ranks may have no batch
        number = self._next_step()
        self._last = self.optimizer.end_step()
        self.global_samples += self.train_batch_size()
        self._step_applied = bool(self._last.updated)
        self.optimizer.overflow = not self._step_applied
        self._steps_counted = int(self._last.step)
        if not self._last.updated:
            self.skipped_steps += 1
        elif step_scheduler is not None:
            # PyTorch's schedulers ask their optimizer whether it has stepped, and warn.
            asked: Any = getattr(scheduler, "optimizer", self.optimizer)
            asked._opt_called = True
            step_scheduler()
        if is_empty:
            log.warning(
                "step %d has no backward before it: its gradients are zero, and weight decay and momentum move the weights", number
            )
        every = self.loop.steps_per_print
        if every and self.global_steps % every == 0 and self.global_rank == 0:
            loss = f", loss={self._last.loss:g}" if has_loss else ""  # loss.backward() tells none
            log.info("step=%d, skipped=%d, lr=%s%s", self.global_steps, self.skipped_steps, self.get_lr(), loss)

    def train_batch(
        self,
        data_iter: Iterator[Any] | None = None,
        loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
        by_layer: bool = False,
    ) -> torch.Tensor:
        """A whole step: as many micro-batches as it has. Returns the mean loss.

        Without ``loss_fn``, forward returns the loss (alone or first), and batches that are tuples are its arguments, dicts
        its keywords. With it, a batch is a pair: the model's input, and what the function takes beside the output.

        ``by_layer``: for an ``nn.Sequential`` of units. All micro-batches pass a layer before the next one, so weights move
        twice in a step, and not twice for each micro-batch; activations of all micro-batches are there at once. Losses and
        weights have equal bits, unless a weight is tied or random numbers are drawn. Raises ValueError for other models.

        Raises ValueError inside a step that has begun. After an exception of the iterator, of forward or of backward, the
        gradients of the step are dropped, and the next call begins anew.
        """
        self._check_own("train_batch")
        count = self.gradient_accumulation_steps()
        if self.loop.micro_batches.begun:
            self._offloaded.hooks.recover_between_passes()  # drops the gradients that the last call could not
        if begun := self.loop.micro_batches.begun:
            raise ValueError(
                f"train_batch() is a whole step, and one has begun, with {begun} of {count} micro-batches: end it with "
                "backward() and step() of the others, or with step() alone where step() has raised an error"
            )
        if data_iter is None:
            if self.training_dataloader is None:
                raise ValueError("train_batch() needs an iterator, or training_data at initialize()")
            if getattr(self, "_data_iterator", None) is None:
                self._data_iterator = batches.Endless(self.training_dataloader)
            data_iter = self._data_iterator
        if by_layer:
            layers = Layers(self.module, self._offloaded.units, self._offloaded.hooks)
            with self._begun_step_dropped_on_error():
                mean = self._train_layers(layers, [batches.of_sequence(next(data_iter), loss_fn) for _ in range(count)])
            self.loop.micro_batches.count(count - 1)
            self.micro_steps += count - 1
            self.tput_timer.micro_step_count += count - 1
            self.step()
            return mean
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for _ in range(count):
            with self._begun_step_dropped_on_error():
                loss = batches.loss_of_batch(self, next(data_iter), loss_fn)
                total += loss.detach().double()
                self.backward(loss)
            self.step()
        return (total / count).float()

    @contextlib.contextmanager
    def _begun_step_dropped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if self.loop.micro_batches.begun:
                log.warning("train_batch() ends with %s: the gradients of this step so far are dropped", type(error).__name__)
                self._offloaded.hooks.drop_step()
            raise

    def _train_layers(self, layers: Layers, parts: list[batches.Part]) -> torch.Tensor:
        self.tput_timer.start()
        losses: list[torch.Tensor] = []

        def loss_of(part: int, output: Any) -> torch.Tensor:
            losses.append(parts[part].loss_of(output))
            batches.check_loss(losses[-1], self._trains)
            return self._scaled(losses[-1], losses[-1] / len(parts))

        with self._offloaded.hooks.announced("a step layer by layer"), self.loop.scaled():
            layers.run([self._cast(part.inputs) for part in parts], loss_of, self._times)
        return (sum(loss.detach().double() for loss in losses) / len(parts)).float()  # type: ignore[union-attr]

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches inside add to the gradients of the step; step() is an error."""
        before, self._not_synced = self._not_synced, True
        try:
            yield
        finally:
            self._not_synced = before

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the micro-batch in progress is the last of its step."""
        if self._boundary is not None:
            return self._boundary
        return (self.loop.micro_batches.counted + 1) % self.gradient_accumulation_steps() == 0

    def _ends_step(self) -> bool:
        return not self._not_synced and self.is_gradient_accumulation_boundary()

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Sets the boundary by hand, from now on. A step may then have any number of micro-batches."""
        self._boundary = is_boundary

    # Data

    def deepspeed_io(
        self,
        dataset: Any,
        batch_size: int | None = None,
        route: str = "train",
        pin_memory: bool = True,
        data_sampler: Any = None,
        collate_fn: Callable[..., Any] | None = None,
        num_local_io_workers: int | None = None,
    ) -> Any:
        """A DataLoader of micro-batches of a torch Dataset: of this rank's part of it. An IterableDataset gives its own part.

        ``route``: "train" shuffles; "eval" and "predict" keep the order. ``data_sampler``: another order. ``collate_fn``
        None: that of :func:`initialize`. ``pin_memory``: where a GPU computes. ``num_local_io_workers``: processes that
        load; None: this one.
        """
        return torch.utils.data.DataLoader(
            dataset,
            batch_size or self.train_micro_batch_size_per_gpu(),
            sampler=batches.sampler_of(dataset, route, self.world_size) if data_sampler is None else data_sampler,
            collate_fn=collate_fn or self.collate_fn,
            pin_memory=pin_memory and self.device.type == "cuda",
            num_workers=num_local_io_workers or 0,
            drop_last=bool(self._configured.drop_last),
        )

    def destroy(self) -> None:
        """Waits for the last updates, and takes the hooks off the model, so that another engine may follow. Once is enough.

        The model has its values again, in its own data type, and what the engine had frozen trains again. Its parameters stay
        empty with several ranks, where weights are on a drive, and where memory has no room for them beside the states
        (logged). An engine without an optimizer that was made of another one's model leaves that one alone. Raises ValueError
        inside GatheredParameters. Raises OSError and StorageError where the last step cannot be committed. With one rank the
        engine stays then: mend the cause, as a full drive, and call it again.
        """
        if not self._is_guest:
            self._offloaded.close()
        self.optimizer._engine = weakref.proxy(self)  # without a cycle, both are gone with their last user

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "module" in modules and hasattr(modules["module"], name):
                return getattr(modules["module"], name)
            if not reason_of(name):
                raise
        raise missing(f"{type(self).__name__!r} object", name)

