"""Whether an optimizer and a scheduler can take what a checkpoint has for them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..._errors import StorageError
from .. import ranks
from ..schedule import ConfigScheduler
from ..watched_loop import WatchedLoop
from .group_names import check_order

log = logging.getLogger("sluice")


def check_groups(where: str, saved: Mapping[str, Any], groups: Sequence[Sequence[str]]) -> None:
    """Raises ValueError for another number of groups, and for groups in another order. ``groups``: the names in each one here."""
    here, there = len(groups), len(saved["optimizer"]["param_groups"])
    if here != there:
        raise ValueError(f"{where} has {there} parameter groups, and the optimizer has {here}: make it with the groups of the saved one")
    check_order(where, saved["optimizer"]["param_groups"], groups)


def check_scheduler(where: str, saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    """Raises StorageError for the state of another scheduler. It and the optimizer stay as they are."""
    if scheduler is None or saved["lr_scheduler"] is None:
        return
    before = copy.deepcopy(scheduler.state_dict())
    values = [dict(group) for group in optimizer.param_groups]
    try:
        scheduler.load_state_dict(copy.deepcopy(saved["lr_scheduler"]))
    except Exception as error:
        raise StorageError(
            f"{where} has the state of another scheduler, which {type(scheduler).__name__} does not take "
            f"({type(error).__name__}: {error}); load_lr_scheduler_states=False leaves it out"
        ) from error
    finally:
        scheduler.load_state_dict(before)
        for group, value in zip(optimizer.param_groups, values):
            group.update(value)


def warn_of_scheduler(scheduler: Any, loop: WatchedLoop) -> None:
    """A resumed run has its states from a drive, where no client's scheduler is."""
    if loop.step > 0 and scheduler is not None and not isinstance(scheduler, ConfigScheduler) and ranks.rank() == 0:
        log.warning(
            "the run resumes at step %d, and its %s begins anew: save_checkpoint() and load_checkpoint() keep it",
            loop.step, type(scheduler).__name__,
        )  # fmt: skip
