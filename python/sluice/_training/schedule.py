"""The learning rates of a configuration's "scheduler" section, as a scheduler object."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from .._errors import wrong_type
from ..runtime import lr_schedules
from ..runtime.lr_schedules import Scheduler

log = logging.getLogger("sluice")


class ConfigScheduler(Scheduler):
    """The schedule of the configuration's "scheduler" section, with the methods of DeepSpeed's schedulers.

    ``loop`` computes the rates, and the betas where the schedule cycles them. It begins at the loop's next update. The
    schedule scales the rates of the groups in proportion. ``section``: given with groups of a script, which a type of
    DeepSpeed's treats as DeepSpeed does.
    """

    def __init__(self, optimizer: Any, loop: Any, section: Mapping[str, Any] | None = None) -> None:
        super().__init__(optimizer, -1)
        self._loop = loop
        base = float(loop.optimizer_values["lr"])
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._scales = [1.0 if rate == base or base == 0 else rate / base for rate in rates]
        self._formula = _formula(self.optimizer, section or {}, base)
        self.follow_loop()

    def follow_loop(self) -> None:
        """Moves to the loop's next update, after a state was loaded."""
        self._move_to(int(self._loop.updates) - 1)

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next update, or to the one after ``last_batch_iteration``."""
        self._move_to(last_batch_iteration)

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        if self._formula is not None:
            self._formula.last_batch_iteration = self.last_batch_iteration
            return self._formula.get_lr()
        rate = float(self._loop.scheduled_rate(self.last_batch_iteration + 2))
        return [rate * scale for scale in self._scales]

    def _set(self) -> None:
        super()._set()
        betas = self._loop.scheduled_betas(self.last_batch_iteration + 2)
        for group in self.optimizer.param_groups:
            if betas is not None and "betas" in group:
                group["betas"] = betas


def scheduler_of(given: Any, optimizer: Any, loop: Any, section: Mapping[str, Any] | None) -> Any:
    """The script's scheduler, or the one that its function makes; without, the configuration's. None where there is neither.

    Raises TypeError for one without step().
    """
    if given is None:
        return ConfigScheduler(optimizer, loop, section) if loop.has_schedule else None
    made = given(optimizer) if isinstance(given, type) or (callable(given) and not hasattr(given, "step")) else given
    if not hasattr(made, "step"):
        raise wrong_type("lr_scheduler" if made is given else "what the function lr_scheduler returns", made, "an object with step()")
    if _gets_batch_size(made):
        log.info(
            "%s.step() needs an argument: it gets the train_batch_size, as under DeepSpeed, unless engine.step(lr_kwargs={...}) gives others",
            type(made).__name__,
        )
    return made


def step_of(scheduler: Any, keywords: Mapping[str, Any], train_batch_size: int) -> Callable[[], None]:
    """The scheduler's step() with its arguments. One that needs an argument and is given none gets ``train_batch_size``.

    Raises TypeError for a step() that takes other ones, and for one of ReduceLROnPlateau without its metrics.
    """
    names = _parameters_of(scheduler.step)
    if names is None or names.takes(**keywords):
        return functools.partial(scheduler.step, **keywords)
    if not keywords and _gets_batch_size(scheduler):
        return functools.partial(scheduler.step, train_batch_size)
    raise TypeError(
        f"{type(scheduler).__name__}.step({', '.join(names.all)}) is called with {', '.join(keywords) or 'no argument'}: give its "
        f'arguments to the engine\'s step, as engine.step(lr_kwargs={{"{next(iter(names.needed), "...")}": ...}})'
    )


class _Parameters:
    """Those of a function."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        self.all = list(signature.parameters)
        self.needed = [each.name for each in signature.parameters.values() if each.default is each.empty]

    def takes(self, *arguments: Any, **keywords: Any) -> bool:
        try:
            self._signature.bind(*arguments, **keywords)
        except TypeError:
            return False
        return True


def _parameters_of(function: Any) -> _Parameters | None:
    """None for a function that does not say them, as one that is not written in Python."""
    try:
        return _Parameters(inspect.signature(function))
    except (TypeError, ValueError):
        return None


def _gets_batch_size(scheduler: Any) -> bool:
    """Whether the scheduler's step() needs one argument, as Megatron's does, which counts samples. Metrics are none."""
    names = _parameters_of(scheduler.step)
    return names is not None and not names.takes() and names.takes(0) and not isinstance(scheduler, ReduceLROnPlateau)


def _formula(optimizer: Any, section: Mapping[str, Any], rate: float) -> Scheduler | None:
    """The object that DeepSpeed makes of its types; None for others. ``rate``: of the optimizer."""
    kind = section.get("type")
    if kind not in lr_schedules.VALID_LR_SCHEDULES:
        return None
    # As the configuration's parser reads "auto", and no warm-up.
    of_auto = {"warmup_min_lr": 0.0, "warmup_max_lr": rate, "warmup_num_steps": 1}
    params = {key: of_auto[key] if value == "auto" else value for key, value in section.get("params", {}).items()}
    if params.get("warmup_num_steps") == 0:
        params["warmup_num_steps"] = 1
    made: Scheduler = getattr(lr_schedules, kind)(optimizer, **params)
    return made
