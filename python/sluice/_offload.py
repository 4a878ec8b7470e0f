"""`sluice.offload`: a model over memory tiers for a loop of one's own, in the style of FSDP2."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ._arguments import check
from ._errors import wrong_type
from ._training import ranks
from ._training.passes.interrupts import interrupts_later
from ._training.frozen import left_out_frozen
from ._training.offloaded import OffloadedModel
from ._training.owners import make_way
from ._training.optimizer import TierOptimizer, follow, optimizer_section
from ._training.report import Report
from ._training.saved import checkpoint
from ._training.schedule import scheduler_of
from ._training.units import Choice
from .config import Config, Source, has_optimizer, section_of

log = logging.getLogger("sluice")


class OffloadedOptimizer(TierOptimizer):
    """Steps a model that :func:`sluice.offload` moved to memory tiers.

    ``param_groups`` has the values of the next step, for schedulers. States are at their tiers and not in ``state``.
    """

    def __init__(self, offloaded: OffloadedModel, client: torch.optim.Optimizer | None, schedule: Mapping[str, Any] | None) -> None:
        super().__init__(offloaded, client)
        self._last: Any = None
        self._schedule = scheduler_of(None, self, offloaded.loop, schedule)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Ends the step: norm over all gradients, clipping by "gradient_clipping", updates.

        The updates run on the host during the next forward. The configuration's schedule sets the rates. A non-finite gradient skips the step, with a line in the log.
        """
        if closure is not None:
            raise ValueError("a closure would run the forward again: call loss.backward() before step()")
        self._offloaded.hooks.recover_between_passes()  # of a backward that failed
        with interrupts_later():
            self._last = self.end_step()
            if self._schedule is not None and self._last.updated:
                self._schedule.step()
        every = self._offloaded.loop.steps_per_print
        if every and self._last.step % every == 0 and ranks.rank() == 0:
            log.info(
                "step=%d, lr=%s, gradient norm=%g", self._last.step, [group["lr"] for group in self.param_groups], self._last.gradient_norm
            )

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the last step, before clipping; None before the first."""
        return None if self._last is None else float(self._last.gradient_norm)

    @property
    def steps(self) -> int:
        """Steps taken, those before a resume too."""
        return int(self._offloaded.loop.step)

    def model_state_dict(self) -> dict[str, torch.Tensor]:
        """Copies of the model's weights, in the data type that computes, and of its buffers."""
        return self._offloaded.state_dict()

    def save_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Writes weights and states to folder/step-NNNNNNNN, buffers beside them, and removes this run's older ones.

        Buffers are rank 0's. Raises OSError, :class:`sluice.StorageError`.
        """
        checkpoint.save(_path_of(folder), self._offloaded, dict)

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> int:
        """Continues from the newest checkpoint in a folder. Returns its step.

        Raises :class:`sluice.StorageError` for one that is damaged or of another model, whose buffers count too.
        """

        def take(saved: dict[str, Any]) -> None:
            if self._schedule is not None:
                self._schedule.follow_loop()

        checkpoint.load(_path_of(folder), self._offloaded, take=take)
        return self.steps

    def report(self) -> Report:
        """Bytes moved and seconds waited, and the plan as data. Shows itself as a table."""
        return self._offloaded.report()

    def close(self) -> None:
        """Waits for the last updates and gives memory and files back. The model has its values again, as after ``destroy()``."""
        self._offloaded.close()


def _path_of(folder: str | os.PathLike[str]) -> str:
    if not isinstance(folder, (str, os.PathLike)):
        raise wrong_type("folder", folder, "a path")
    return os.fspath(folder)


def offload(
    module: nn.Module,
    config: Source | Config,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    units: Choice = None,
    resume: bool | None = None,
    progress: bool = False,
) -> OffloadedOptimizer:
    """Moves a model to the memory tiers of a configuration, for a loop of one's own. Returns its optimizer.

    The loop calls the model, ``loss.backward()`` and ``optimizer.step()``. Several backwards before a step add up: divide
    the loss by their number. ``optimizer``: its formula, groups and values are taken over, and its methods are those of
    the returned one from then on; without, the configuration's, which a model with a parameter that trains needs. ``units``,
    ``resume`` and ``progress``: as in :func:`sluice.initialize`.

    Raises ConfigError, :class:`sluice.DoesNotFit`, TypeError, OSError, MemoryError, and ValueError for fp16, whose loss scale needs
    the engine of :func:`sluice.initialize`.

    >>> optimizer = sluice.offload(model, "ds.json")
    >>> for x, y in loader:
    ...     loss = f(model(x), y)
    ...     loss.backward()
    ...     optimizer.step()
    """
    check(module=module, resume=resume)
    if optimizer is None and not has_optimizer(config) and any(each.requires_grad for each in module.parameters()):
        raise ValueError('sluice.offload needs an optimizer: pass optimizer=, or add "optimizer" to the configuration')
    section, groups = (None, None) if optimizer is None else (optimizer_section(optimizer), optimizer.param_groups)
    if optimizer is not None or has_optimizer(config):
        make_way(module)
    with left_out_frozen(module, groups) as frozen_parts:
        offloaded = OffloadedModel(
            module,
            config,
            optimizer=section,
            groups=groups,
            units=units,
            resume=resume,
            progress=progress,
            scales_losses=False,
        )
        with offloaded.undone_on_error():
            made = OffloadedOptimizer(offloaded, optimizer, None if optimizer is None else section_of(config, "scheduler"))
            offloaded.frozen, offloaded.user = frozen_parts, weakref.ref(made)
    follow(optimizer, made)
    return made
