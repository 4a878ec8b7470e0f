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

from ._launcher import local_rank
from ._refusals import missing, reason_of
from ._training import batches, ranks
from ._training.engine_values import EngineValues
from ._training.frozen import frozen
from ._training.passes.interrupts import interrupts_later
from ._training.passes.layers import Layers
from ._training.passes.step_times import StepTimes
from ._training.offloaded import OffloadedModel
from ._training.optimizer import SluiceOptimizer, check_groups, follow, groups_of, section_of
from ._training.saved import checkpoint
from ._training.saved.files import latest_tag, set_latest, tag_folder
from ._training.saved.optimizers import check_optimizer, warn_of_scheduler
from ._training.schedule import scheduler_of
from ._training.units import Choice
from .config import Config, Source

__all__ = ["SluiceEngine"]

log = logging.getLogger("sluice")

Schedule = Any  # a scheduler object, or a function that makes one from an optimizer


class SluiceEngine(EngineValues):
    """Trains a model over memory tiers, with the methods of DeepSpeed's engine. Made by :func:`sluice.initialize`.

    One thread calls it. After an error in forward the step goes on with its next micro-batch; after an error in backward
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
        groups = None if model_parameters is None else groups_of(model_parameters)
        client = optimizer if optimizer is None or isinstance(optimizer, torch.optim.Optimizer) else optimizer(
            list(model.parameters()) if groups is None else groups
        )
        self.module = model
        self.global_rank, self.world_size = ranks.rank(), ranks.world_size()
        self.local_rank = local_rank()
        self._source = source
        self._optimizer_class = None if client is None else type(client).__name__
        has_groups = client is not None or groups is not None  # of the script
        if client is None and groups is not None:
            params = self.optimizer_params()
            check_groups(groups, params if isinstance(params, Mapping) else {})
        self._trains = has_groups or self.has_optimizer_section()
        # Without an optimizer no gradients and states are planned: the model is frozen.
        with contextlib.nullcontext() if self._trains else frozen(model):
            self._offloaded = OffloadedModel(
                model,
                source,
                optimizer=None if client is None else section_of(client),
                groups=groups if client is None else client.param_groups,
                has_schedule=self._trains and lr_scheduler is None,
                units=units,
                resume=resume,
                progress=progress,
            )
            self.loop = self._offloaded.loop
            self.collate_fn = collate_fn
            with self._offloaded.undone_on_error():
                self.optimizer = SluiceOptimizer(self, self._offloaded, client, groups)
                section = self._section("scheduler") if has_groups else None
                self.lr_scheduler = scheduler_of(lr_scheduler, self.optimizer, self.loop, section)
                warn_of_scheduler(self.lr_scheduler, self.loop)
                self.training_dataloader = None if training_data is None else self.deepspeed_io(training_data)
        self.client_optimizer, self.client_lr_scheduler = client, lr_scheduler
        follow(client, self.optimizer)
        self.global_steps = int(self.loop.step)
        self.micro_steps, self.skipped_steps = 0, 0
        self.global_samples = self.global_steps * self.train_batch_size()
        self.loss: torch.Tensor | None = None
        self._boundary: bool | None = None  # set by set_gradient_accumulation_boundary()
        self._not_synced = False
        self._times = StepTimes(self.device, self.loop.wall_clock_breakdown)
        self._last: Any = None
        self._step_applied = False

    # Passes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward. Raises ValueError after destroy()."""
        self.loop.check_open()
        try:
            with self._times.of("fwd") if torch.is_grad_enabled() else contextlib.nullcontext():
                return self.module(*args, **kwargs)
        except BaseException:
            self._offloaded.hooks.leave_forwards()
            raise

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Backward of a scalar loss: divided by the micro-batches of a step, times the loss scale of fp16.

        ``scale_wrt_gas`` False: not divided. Returns the loss as divided. Raises ValueError for a loss that is no scalar
        or depends on no parameter.
        """
        batches.check_loss(loss, self._trains)
        count = self.gradient_accumulation_steps()
        divided = loss / count if scale_wrt_gas else loss
        scaled = self._scaled(loss if scale_wrt_gas else loss * count, divided)
        try:
            with self.loop.scaled(), self._times.of("bwd"):
                scaled.backward(retain_graph=retain_graph)
        except BaseException:
            self._offloaded.hooks.abandon()
            raise
        self.loss = divided.detach()
        return divided

    def _scaled(self, loss: torch.Tensor, divided: torch.Tensor) -> torch.Tensor:
        """Counts a loss for the step. Returns what its backward begins with."""
        self.loop.add_loss(loss)
        return divided.float() * self.loop.loss_scale

    def step(self, lr_kwargs: Mapping[str, Any] | None = None) -> None:
        """Ends a micro-batch. At the boundary of a step: norm, clipping, updates, and the scheduler's step.

        The updates run on the host during the next forward. Raises RuntimeError inside :meth:`no_sync`.
        """
        if self._not_synced:
            raise RuntimeError("step() inside no_sync(): leave the context first")
        self._offloaded.hooks.recover()  # the step begins anew after a backward that failed
        at_boundary = self.is_gradient_accumulation_boundary()
        self._step_applied = False
        self.micro_steps += 1
        self.loop.in_step += 1
        if not at_boundary:
            self.loop.has_new_gradients = False
            return
        with interrupts_later():
            with self._times.of("step"):
                self.optimizer.with_hooks(functools.partial(self._end_step, lr_kwargs))
            self._times.end_step()

    def _end_step(self, lr_kwargs: Mapping[str, Any] | None) -> None:
        in_step, self.loop.in_step = self.loop.in_step, 0
        has_loss = self.loop.has_loss
        try:
            self._last = self.optimizer.end_step()
        except ValueError:  # nothing of the step has happened: its caller may mend the value and step again
            self.loop.in_step, self.micro_steps = in_step - 1, self.micro_steps - 1
            raise
        self.global_samples += self.train_batch_size()
        self._step_applied = bool(self._last.updated)
        self.optimizer.overflow = not self._step_applied
        self.global_steps = int(self._last.step)
        if not self._last.updated:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            # PyTorch's schedulers ask their optimizer whether it has stepped, and warn.
            asked: Any = getattr(self.lr_scheduler, "optimizer", self.optimizer)
            asked._opt_called = True
            self.lr_scheduler.step(**(lr_kwargs or {}))
        every = self.loop.steps_per_print
        if every and self.global_steps % every == 0:
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
        """
        if data_iter is None:
            if self.training_dataloader is None:
                raise ValueError("train_batch() needs an iterator, or training_data at initialize()")
            if getattr(self, "_data_iterator", None) is None:
                self._data_iterator = batches.endless(self.training_dataloader)
            data_iter = self._data_iterator
        count = self.gradient_accumulation_steps()
        if by_layer:
            layers = Layers(self.module, self._offloaded.units, self._offloaded.hooks)
            if self.loop.in_step:
                raise ValueError("a step goes layer by layer from its first micro-batch on, and this one has begun")
            mean = self._train_layers(layers, [batches.of_sequence(next(data_iter), loss_fn) for _ in range(count)])
            self.loop.in_step = count - 1
            self.micro_steps += count - 1
            self.step()
            return mean
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for _ in range(count):
            loss = batches.loss_of_batch(self, next(data_iter), loss_fn)
            total += loss.detach().double()
            self.backward(loss)
            self.step()
        return (total / count).float()

    def _train_layers(self, layers: Layers, parts: list[batches.Part]) -> torch.Tensor:
        losses: list[torch.Tensor] = []

        def loss_of(part: int, output: Any) -> torch.Tensor:
            losses.append(parts[part].loss_of(output))
            batches.check_loss(losses[-1], self._trains)
            return self._scaled(losses[-1], losses[-1] / len(parts))

        with self.loop.scaled():
            layers.run([part.inputs for part in parts], loss_of, self._times)
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
        return (self.loop.in_step + 1) % self.gradient_accumulation_steps() == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Sets the boundary by hand, from now on. A step may then have any number of micro-batches."""
        self._boundary = is_boundary

    # Data, checkpoints

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
            drop_last=bool(self.loop.drop_last),
        )

    def save_checkpoint(
        self,
        save_dir: str,
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Writes save_dir/tag: weights and states of what trains, buffers, the scheduler, counters and client_state.

        Without a tag: ``global_step`` and the number of steps. ``latest`` then names the tag. Frozen parameters are not
        written: they come from the model. Returns True; raises OSError, :class:`sluice.StorageError`, and ValueError where no
        parameter trains.
        """
        checkpoint.check_trains(self._offloaded)  # before there is a folder
        name = f"global_step{self.global_steps}" if tag is None else str(tag)
        ranks.check_agreement({"the tag of save_checkpoint": name})
        folder = ranks.together(lambda: tag_folder(save_dir, name))
        checkpoint.save(folder, self._offloaded, lambda: self._beside_states(client_state))
        ranks.together(lambda: set_latest(save_dir, name) if save_latest and self.global_rank == 0 else None)
        return True

    def _beside_states(self, client_state: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "client_state": dict(client_state or {}),
            "lr_scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": {key: getattr(self, key) for key in _COUNTERS},
        }

    def load_checkpoint(
        self,
        load_dir: str,
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable[..., Any] | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from load_dir/tag; without a tag from the one that ``latest`` names.

        ``load_module_strict`` False: buffers that only the checkpoint or the model has are left out. A checkpoint has what
        trains, and no frozen parameter (as of a model under adapters). Returns the folder and the client_state, or
        (None, None) where there is no ``latest``. Raises ValueError for other groups or tags of ranks,
        :class:`sluice.StorageError` for what is damaged or of another model. Then the engine is as before, or it was loaded
        in part only and takes only another checkpoint.
        """
        if load_module_only or not load_optimizer_states or custom_load_fn is not None:
            raise ValueError("a checkpoint is loaded as a whole: weights with their optimizer states")
        name = ranks.together(lambda: latest_tag(load_dir) if tag is None else str(tag))
        ranks.check_agreement({"the tag of load_checkpoint": name})
        if name is None:
            log.warning("no checkpoint is loaded: %s has no file latest; pass a tag", load_dir)
            return None, None
        folder = ranks.together(lambda: tag_folder(load_dir, name, exists=True))
        scheduler = self.lr_scheduler if load_lr_scheduler_states else None

        def take(saved: dict[str, Any]) -> None:
            self.loop.in_step = 0
            for key, value in saved["counters"].items():
                setattr(self, key, value)
            self.optimizer.load_state_dict(saved["optimizer"])
            if scheduler is not None and saved["lr_scheduler"] is not None:
                scheduler.load_state_dict(saved["lr_scheduler"])

        keys = ("client_state", "buffers", "lr_scheduler", "optimizer", "counters")
        saved = checkpoint.load(
            folder,
            self._offloaded,
            keys=keys,
            strict=load_module_strict,
            check=lambda saved: check_optimizer(folder, saved, self.optimizer, scheduler),
            take=take,
        )
        return folder, saved["client_state"]

    def destroy(self) -> None:
        """Waits for the last updates, and takes the hooks off the model. Its parameters stay empty. Once is enough."""
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


_COUNTERS = ("global_steps", "micro_steps", "skipped_steps", "global_samples")
