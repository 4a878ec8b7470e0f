"""Checkpoints of an engine, with DeepSpeed's calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ..._errors import Error
from .. import ranks
from ..engine_values import EngineValues
from ..start.agreement import check_agreement
from . import checkpoint, client_states
from .files import latest_tag, set_latest, tag_folder
from .group_names import names_in
from .optimizers import check_groups, check_scheduler

log = logging.getLogger("sluice")

_COUNTERS = ("global_steps", "micro_steps", "skipped_steps", "global_samples")


def _check_alike(call: str, argument: str, given: str, tag: str | None) -> None:
    """One checkpoint has a part of each rank. Raises ValueError on all ranks where one has another directory or tag.

    Paths are compared as they are given: hosts may differ in how they mount one directory behind a link.
    """
    path = f"{os.path.normpath(given)} (one path that all ranks see)"
    check_agreement({f"the {argument} of {call}": path, f"the tag of {call}": tag})


class EngineCheckpoints(EngineValues):
    """The part of an engine that saves and loads. Private: engines inherit it."""

    _steps_before: int  # of global_steps, those that the states of this engine have not taken
    _steps_counted: int  # of those that the states have taken
    lr_scheduler: Any

    @property
    def global_steps(self) -> int:
        """Calls of :meth:`step` that ended a step, skipped ones too. A script may set it, and it counts on from there."""
        return self._steps_before + self._steps_counted

    @global_steps.setter
    def global_steps(self, steps: int) -> None:
        self._steps_before = steps - self._steps_counted

    def _steps_behind(self) -> int:
        """Steps that the states have taken, and the counters have not: 0 unless an exception ended a step between the two."""
        return int(self.loop.step) - self._steps_counted

    def _next_step(self) -> int:
        """The number of the step that ends now. Warns where the counters have missed one before it."""
        behind = self._steps_behind()
        if behind:
            log.warning(
                "global_steps is %d, and the weights have taken %d steps: an exception (as of a second Ctrl-C) had ended step() "
                "between the two. It follows the weights now. The scheduler and global_samples may be %d "
                "steps behind: load a checkpoint to have all of one step",
                self.global_steps,
                self.global_steps + behind,
                behind,
            )
        return self.global_steps + behind + 1

    def _check_counters(self) -> None:
        """Raises :class:`sluice.Error` where counters and states are of two steps: nothing could load such a checkpoint."""
        behind = self._steps_behind()
        if behind:
            raise Error(
                f"nothing is saved: global_steps is {self.global_steps}, and the weights have taken {self.global_steps + behind} "
                "steps. An exception (as of a second Ctrl-C) had ended step() between the two. "
                "The checkpoints before are whole: load one and go on from it"
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
        written: they come from the model. At ZeRO-3 each rank has a client_state of its own, below it is rank 0's for all, as
        with DeepSpeed. Returns True; raises OSError, :class:`sluice.StorageError`, and ValueError where no
        parameter trains, where the ranks give several directories or tags, and for a tag that ``latest`` cannot name.
        """
        self._check_own("save_checkpoint")
        ranks.set_doing("save_checkpoint")
        checkpoint.check_trains(self._offloaded)  # before there is a folder
        name = f"global_step{self.global_steps}" if tag is None else str(tag)
        _check_alike("save_checkpoint", "save_dir", save_dir, name)

        def checked_folder() -> str:
            self._check_counters()
            return tag_folder(save_dir, name)

        folder = ranks.together(checked_folder)
        of_ranks = client_states.of_ranks(client_state) if self.zero_optimization_stage() == 3 else {}
        checkpoint.save(folder, self._offloaded, lambda: {**self._beside_states(client_state), **of_ranks})
        ranks.together(lambda: set_latest(save_dir, name) if save_latest and self.global_rank == 0 else None)
        return True

    def _beside_states(self, client_state: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "client_state": dict(client_state or {}),
            "lr_scheduler": None if self.lr_scheduler is None else self.lr_scheduler.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counters": {**{key: getattr(self, key) for key in _COUNTERS}, "steps_before": self._steps_before},
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
        """Continues from load_dir/tag; without a tag from the one that ``latest`` names. Every rank calls it.

        A checkpoint has what trained, and no frozen parameter (as of a model under adapters): those come from the model.

        - By default weights, buffers, optimizer states and the values of the groups, scheduler and counters are loaded. The
          model must train the saved parameters.
        - ``load_optimizer_states`` False, or an engine of which nothing trains: states and groups stay those of this engine,
          as in DeepSpeed. Adam's correction of bias goes on with its steps; ``global_steps`` and the scheduler with the
          checkpoint's. Masters have the saved fp32 values, where DeepSpeed rounds them to bf16 or fp16.
        - ``load_module_only`` True: weights and buffers only. Counters and scheduler stay, too.

        Both take weights for frozen parameters as well. The fp32 weights go through a file beside the checkpoint, or in TMPDIR.
        ``load_module_strict`` False: buffers that only the checkpoint or the model has are left out, and so are weights if they
        are loaded without states.

        Returns the folder and the client_state, or (None, None) where there is no ``latest``. The client_state is this rank's, if
        it was saved at ZeRO-3 by as many ranks; else it is rank 0's. Raises ValueError for other
        groups or tags of ranks and for a ``custom_load_fn``, OSError where that file has no room,
        :class:`sluice.StorageError` for what is damaged or of another model. Then the engine is as before, or it was loaded
        in part only and takes only another checkpoint, with states.
        """
        _refuse_custom(custom_load_fn)
        ranks.set_doing("load_checkpoint")
        name = ranks.together(lambda: latest_tag(load_dir) if tag is None else str(tag))
        _check_alike("load_checkpoint", "load_dir", load_dir, name)
        if name is None:
            log.warning("no checkpoint is loaded: %s has no file latest; pass a tag", load_dir)
            return None, None
        folder = ranks.together(lambda: tag_folder(load_dir, name, exists=True))
        has_states = load_optimizer_states and not load_module_only and self._trains and checkpoint.trains(self._offloaded)
        scheduler = self.lr_scheduler if load_lr_scheduler_states and not load_module_only else None

        def check(saved: dict[str, Any]) -> None:
            saved["client_state"] = client_states.own_of(folder, saved)
            if has_states:
                check_groups(folder, saved, [names_in(self._offloaded.parameters, group) for group in self.optimizer.param_groups])
            if scheduler is not None:
                check_scheduler(folder, saved, self.optimizer, scheduler)

        def take(saved: dict[str, Any]) -> None:
            self.loop.micro_batches.counted = 0
            if not load_module_only:
                self._take_counters(saved, scheduler, has_states)

        saved = (checkpoint.load if has_states else checkpoint.load_weights)(
            folder,
            self._offloaded,
            keys=() if load_module_only else ("client_state", "buffers", "lr_scheduler", "optimizer", "counters"),
            strict=load_module_strict,
            check=check,
            take=take,
        )
        return folder, saved.get("client_state", {})

    def _take_counters(self, saved: Mapping[str, Any], scheduler: Any, has_states: bool) -> None:
        """Continues with the checkpoint's counters, its scheduler unless ``scheduler`` is None, and its groups with its states."""
        self._steps_counted = int(self.loop.step)
        for key in _COUNTERS:
            setattr(self, key, saved["counters"].get(key, 0))
        if scheduler is not None and saved["lr_scheduler"] is not None:
            scheduler.load_state_dict(saved["lr_scheduler"])
        if has_states:  # after the scheduler, which sets its rates: a script may have set others
            self.optimizer.load_state_dict(saved["optimizer"])


def _refuse_custom(custom_load_fn: Callable[..., Any] | None) -> None:
    if custom_load_fn is not None:
        raise ValueError(
            "custom_load_fn would find empty parameters: sluice.utils.zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint() "
            "reads the weights, and inside sluice.zero.GatheredParameters(list(engine.module.parameters()), modifier_rank=0) they "
            "can be set"
        )
