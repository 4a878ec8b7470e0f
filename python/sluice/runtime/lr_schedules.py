"""DeepSpeed's schedulers as objects: WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle and LRRangeTest.

A scheduler sets ``lr`` (OneCycle ``betas`` too) of an optimizer's ``param_groups`` for the update after each
:meth:`step`. Rates have the bits of DeepSpeed 0.19.8. The "scheduler" section of a configuration gives these rates too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Union

import torch

from .._refusals import missing
from ..utils import logger

__all__ = ["VALID_LR_SCHEDULES", "LRRangeTest", "OneCycle", "WarmupCosineLR", "WarmupDecayLR", "WarmupLR"]

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]
"""Names of the classes."""

PerGroup = Union[float, Sequence[float]]
"""One value for all parameter groups, or one for each."""


def _optimizer_of(optimizer: Any) -> torch.optim.Optimizer:
    for candidate in (optimizer, getattr(optimizer, "optimizer", None)):
        if isinstance(candidate, torch.optim.Optimizer):
            return candidate
    raise TypeError(f"{type(optimizer).__name__} is no torch.optim.Optimizer, and has none as .optimizer")


def _count_of(name: str, value: float) -> int:
    """A positive integer, which a file may write as 1e3."""
    if not isinstance(value, (int, float)) or value <= 0 or value % 1 != 0:
        raise ValueError(f"{name} is {value}: a positive integer is needed")
    return int(value)


class Scheduler:
    """Rates by the number of steps so far; -1: none yet."""

    def __init__(self, optimizer: Any, last_batch_iteration: int) -> None:
        self.optimizer = _optimizer_of(optimizer)
        self.last_batch_iteration = last_batch_iteration

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """Rates that were set last, by parameter group. Raises AssertionError before any was."""
        assert hasattr(self, "_last_lr"), "need to call step() first"
        return list(self._last_lr)

    def state_dict(self) -> dict[str, Any]:
        """The number of steps."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: Mapping[str, Any]) -> None:
        """Continues from a state, and sets its rates."""
        self._move_to(sd["last_batch_iteration"])

    def _start(self) -> None:
        if self.last_batch_iteration == -1:
            self._set()

    def _move_to(self, iteration: int | None) -> None:
        self.last_batch_iteration = self.last_batch_iteration + 1 if iteration is None else iteration
        self._set()

    def _set(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_lr()):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _per_group(self, value: PerGroup, name: str) -> list[float]:
        count = len(self.optimizer.param_groups)
        if not isinstance(value, (list, tuple)):
            return [value] * count  # type: ignore[list-item]
        if len(value) != count:
            raise ValueError(f"{name} has {len(value)} values for {count} parameter groups")
        return list(value)


class _Warmup(Scheduler):
    """A rise over the first updates, by the logarithm of the update or in a line."""

    def __init__(self, optimizer: Any, warmup_num_steps: int, warmup_type: str, last_batch_iteration: int) -> None:
        warmup_num_steps = _count_of("warmup_num_steps", warmup_num_steps)
        super().__init__(optimizer, last_batch_iteration)
        if warmup_type not in ("log", "linear"):
            logger.warning("warmup_type %r is unknown: the warm-up is logarithmic", warmup_type)
            warmup_type = "log"
        self.warmup_type = warmup_type
        self.warmup_num_steps = max(2, warmup_num_steps)  # the logarithm of 1 is no divisor

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Moves to the next update, or to the one after ``last_batch_iteration``."""
        self._move_to(last_batch_iteration)

    def _part(self) -> float | None:
        """The part of the warm-up that is done; None after it."""
        done = self.last_batch_iteration
        if done >= self.warmup_num_steps:
            return None
        if self.warmup_type == "linear":
            return done / self.warmup_num_steps
        # The reciprocal is rounded first, as in DeepSpeed.
        return (1.0 / math.log(self.warmup_num_steps)) * math.log(done + 1)

    def _warn_of_length(self, total_num_steps: int) -> None:
        if total_num_steps < self.warmup_num_steps:
            logger.warning("total_num_steps %d is less than warmup_num_steps %d", total_num_steps, self.warmup_num_steps)


class WarmupLR(_Warmup):
    """From ``warmup_min_lr`` to ``warmup_max_lr`` over ``warmup_num_steps`` updates, then constant.

    ``warmup_max_lr`` None: the rates of the groups. ``warmup_type``: "log" or "linear".
    """

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: PerGroup = 0.0,
        warmup_max_lr: PerGroup | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration)
        if warmup_max_lr is None:
            warmup_max_lr = [group["lr"] for group in self.optimizer.param_groups]
        self.min_lrs = self._per_group(warmup_min_lr, "warmup_min_lr")
        self.max_lrs = self._per_group(warmup_max_lr, "warmup_max_lr")
        self._start()

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        if self.last_batch_iteration < 0:
            return list(self.min_lrs)
        part = self._part()
        part = self._after_warmup() if part is None else part
        return [low + (high - low) * part for low, high in zip(self.min_lrs, self.max_lrs)]

    def _after_warmup(self) -> float:
        return 1.0


class WarmupDecayLR(WarmupLR):
    """As :class:`WarmupLR`; after the warm-up in a line to 0 at ``total_num_steps`` updates."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: PerGroup = 0.0,
        warmup_max_lr: PerGroup = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration)
        self._warn_of_length(total_num_steps)

    def _after_warmup(self) -> float:
        left = self.total_num_steps - self.last_batch_iteration
        return max(0.0, left / max(1.0, self.total_num_steps - self.warmup_num_steps))


class WarmupCosineLR(_Warmup):
    """Ratios of the groups' rates: from ``warmup_min_ratio`` to 1, then half a cosine to ``cos_min_ratio``."""

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = "log",
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, warmup_num_steps, warmup_type, last_batch_iteration)
        self.total_num_steps, self.warmup_min_ratio, self.cos_min_ratio = total_num_steps, warmup_min_ratio, cos_min_ratio
        self._warn_of_length(total_num_steps)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.org_lrs = [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates]
        self._start()

    def get_lr_ratio(self) -> float:
        """The ratio for the next update."""
        if self.last_batch_iteration < 0:
            return 0.0
        part = self._part()
        if part is not None:
            return self.warmup_min_ratio + part * (1.0 - self.warmup_min_ratio)
        decay_steps = max(1, self.total_num_steps - self.warmup_num_steps)
        progress = min(1.0, (self.last_batch_iteration - self.warmup_num_steps + 1) / decay_steps)
        height = (1 + math.cos(math.pi * progress)) / 2
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * height)

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        ratio = self.get_lr_ratio()
        return [float(rate) * ratio for rate in self.org_lrs]


class LRRangeTest(Scheduler):
    """Rates that grow from ``lr_range_test_min_lr``, by ``step_rate`` times it in each ``step_size`` updates.

    ``lr_range_test_staircase``: they grow after whole intervals only.
    """

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: PerGroup = 1e-3,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.min_lr = self._per_group(lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = _count_of("lr_range_test_step_size", lr_range_test_step_size)
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        self._start()

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        intervals = (self.last_batch_iteration + 1) / self.step_size
        growth = 1 + self.step_rate * (math.floor(intervals) if self.staircase else intervals)
        return [rate * growth for rate in self.min_lr]

    def step(self, batch_iteration: int | None = None) -> None:
        """Moves to the next update, or to the one after ``batch_iteration``."""
        self._move_to(batch_iteration)


class OneCycle(Scheduler):
    """One cycle from ``cycle_min_lr`` to ``cycle_max_lr`` and back, then decay; the first beta the other way.

    ``cycle_first_step_size``, ``cycle_second_step_size``: updates of the halves; None: as the first. ``..._stair_count``:
    steps of a staircase in a half; 0: none. ``decay_step_size``: updates of an interval of the decay; 0: no decay. The
    rate is then divided by 1 + ``decay_lr_rate`` × intervals, the beta multiplied by 1 + ``decay_mom_rate`` × intervals.
    ``cycle_momentum``: sets ``betas``, the second to 0.99.
    """

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: PerGroup,
        cycle_max_lr: PerGroup,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: PerGroup = 0.8,
        cycle_max_mom: PerGroup = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration)
        self.first_step_size = float(cycle_first_step_size)
        self.second_step_size = self.first_step_size if cycle_second_step_size is None else float(cycle_second_step_size)
        if self.first_step_size <= 0 or self.second_step_size < 0:
            raise ValueError("the first half of a cycle needs updates, and the second a count that is not negative")
        self.total_size = self.first_step_size + self.second_step_size
        self._stairs = (
            cycle_first_stair_count,
            cycle_first_stair_count if cycle_second_stair_count is None else cycle_second_stair_count,
        )
        self.decay_step_size, self.decay_lr_rate, self.decay_mom_rate = decay_step_size, decay_lr_rate, decay_mom_rate
        self.min_lrs = self._per_group(cycle_min_lr, "cycle_min_lr")
        self.max_lrs = self._per_group(cycle_max_lr, "cycle_max_lr")
        self.cycle_momentum = cycle_momentum and "betas" in self.optimizer.defaults
        if cycle_momentum and not self.cycle_momentum:
            logger.warning("cycle_momentum has no effect: %s has no betas", type(self.optimizer).__name__)
        self.min_moms = self._per_group(cycle_min_mom, "cycle_min_mom")
        self.max_moms = self._per_group(cycle_max_mom, "cycle_max_mom")
        if last_batch_iteration == -1:
            for group, rate, momentum in zip(self.optimizer.param_groups, self.min_lrs, self.min_moms):
                group["lr"] = rate
                if self.cycle_momentum:
                    group["betas"] = (momentum, 0.99)

    def _height(self) -> float:
        """0 at the ends of the cycle, 1 at its middle."""
        update = self.last_batch_iteration + 1
        part = 1.0 + update / self.total_size - math.floor(1 + update / self.total_size)
        middle = self.first_step_size / self.total_size
        rising = part <= middle
        height = part / middle if rising else (part - 1) / (middle - 1)
        stairs = self._stairs[0 if rising else 1]
        if stairs <= 0:
            return height
        # Counted in updates: rounding of `height` could miss a stair by one.
        inside = update % self.total_size
        if inside <= self.first_step_size:
            return math.floor(inside * stairs / self.first_step_size) / stairs
        return math.floor((self.total_size - inside) * stairs / self.second_step_size) / stairs

    def _intervals(self, decay_rate: float) -> float | None:
        """Intervals of the decay so far; None in the cycle."""
        if self.last_batch_iteration < self.total_size:
            return None
        if math.isclose(self.decay_step_size, 0) or math.isclose(decay_rate, 0):
            return 0.0
        return (self.last_batch_iteration - self.total_size + 1) / self.decay_step_size

    def get_lr(self) -> list[float]:
        """Rates of the next update, by parameter group."""
        intervals = self._intervals(self.decay_lr_rate)
        if intervals is None:
            height = self._height()
            return [low + (high - low) * height for low, high in zip(self.min_lrs, self.max_lrs)]
        return [rate / (1 + self.decay_lr_rate * intervals) for rate in self.min_lrs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """Betas of the next update, by parameter group; None where they are left alone."""
        if not self.cycle_momentum:
            return None
        if self.last_batch_iteration < 0:  # as in DeepSpeed, whose second update has almost cycle_max_mom
            return [(momentum, 0.99) for momentum in self.min_moms]
        intervals = self._intervals(self.decay_mom_rate)
        if intervals is None:
            height = self._height()
            return [(high - (high - low) * height, 0.99) for low, high in zip(self.min_moms, self.max_moms)]
        return [(momentum * (1 + self.decay_mom_rate * intervals), 0.99) for momentum in self.max_moms]

    def step(self, batch_iteration: int | None = None) -> None:
        """Moves to the next update, or to the one after ``batch_iteration``."""
        self._move_to(batch_iteration)

    def _set(self) -> None:
        super()._set()
        for group, betas in zip(self.optimizer.param_groups, self.get_mom() or []):
            group["betas"] = betas


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
