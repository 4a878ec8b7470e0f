"""A loop of the extension whose calls other ranks know of, are ranges of torch.profiler, and steps of a progress bar."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import ranks
from .frozen import FrozenInPasses
from .passes.absent import Guards, refuse_copies
from .passes.divided import begun_by_engine
from .shown.step_bar import StepBar

# Calls that all ranks make, beside those of the passes.
_WHOLE_TENSORS = {f"{what}{name}" for what in ("", "set_") for name in ("master", "moment", "gradient")} | {"parameter", "parameters", "set_parameters"}
_BETWEEN_PASSES = _WHOLE_TENSORS | {"save_checkpoint", "load_checkpoint"}
_OF_ALL_RANKS = _BETWEEN_PASSES | {"initialize", "finish"}


class MicroBatches:
    """Those of an engine's step in progress: how many its calls of step() have counted, and what their backwards have left."""

    def __init__(self) -> None:
        self.counted = 0
        self.has_loss = False
        self.has_gradients = False
        self.has_new_gradients = False  # of a backward that no step() has counted
        self.has_unscaled_gradients = False  # of a backward without the loss scale that it needs

    @property
    def begun(self) -> int:
        """How many have had a backward or a step() since the last step ended."""
        return self.counted + self.has_new_gradients

    def begin_gradients(self) -> None:
        """An engine counts a loss for its backward, or a parameter gets a gradient. A gradient of inputs alone is of no micro-batch."""
        self.has_gradients = self.has_new_gradients = True

    def count(self, number: int = 1) -> None:
        """Micro-batches have ended."""
        self.counted += number

    def go_on(self) -> None:
        """The step has another micro-batch: its gradients so far are counted."""
        self.has_new_gradients = False

    def take_back(self) -> None:
        """Undoes :meth:`count` of one, unless the step began anew since."""
        self.counted = max(self.counted - 1, 0)

    def begin_anew(self) -> None:
        """The step has ended, or was dropped."""
        self.counted = 0
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """The gradients so far are dropped. The count stays."""
        self.has_loss = self.has_gradients = self.has_new_gradients = self.has_unscaled_gradients = False


if TYPE_CHECKING:
    from .._engine import Loop, StepResult
else:
    Loop = object  # the extension is there only beside its own PyTorch


class WatchedLoop(Loop):
    """An ``_engine.Loop``. Under torch.profiler its calls are ranges: "sluice.gather h.0" is the wait for a unit.

    ``group``: of the thread that trains, with several ranks. ``only_computes``: parameters of a unit are frozen in its passes.
    ``micro_batches`` begin anew where the extension drops the step's gradients.
    """

    def __init__(
        self, loop: Loop, names: Sequence[str], group: ranks.RankGroup | None, show_progress: bool, only_computes: bool = False
    ) -> None:
        self._loop, self._names, self._group = loop, names, group
        self.number = 0 if group is None else group.number  # of the engine, equal on all ranks; 0 with one rank
        self._frozen = FrozenInPasses([]) if only_computes else None
        self._pass = "forward"
        self.micro_batches = MicroBatches()
        self._is_scaled = self._is_scaled_by_script = False  # see is_scaled
        self._bar = StepBar(sys.stderr) if show_progress else None
        self._guards = Guards([])
        self._accumulation_steps = int(loop.accumulation_steps)
        self._recover: Callable[[], Callable[[], None] | None] = lambda: None
        self._values: Callable[[], Callable[[], Sequence[Mapping[str, float]]] | None] = lambda: None
        self._is_boundary: Callable[[], Callable[[], bool] | None] = lambda: None

    def recover_by(self, recover: weakref.WeakMethod[Callable[[], None]]) -> None:
        """``recover`` cleans up after a pass that has failed. Called before a parameter is read or set, and before checkpoints."""
        self._recover = recover

    def values_by(self, values: weakref.WeakMethod[Callable[[], Sequence[Mapping[str, float]]]]) -> None:
        """``values`` gives the values that end_step() would be given now, or raises ValueError."""
        self._values = values

    def boundary_by(self, is_boundary: weakref.WeakMethod[Callable[[], bool]]) -> None:
        """``is_boundary`` says whether the backward that begins is the last of its step. Without, the micro-batches are counted."""
        self._is_boundary = is_boundary

    @property
    def accumulation_steps(self) -> int:
        """Micro-batches of a step: those of the configuration, or of :meth:`set_accumulation_steps`."""
        return self._accumulation_steps

    @property
    def train_batch_size(self) -> int:
        """Samples of a step of all ranks."""
        return self._loop.train_batch_size // self._loop.accumulation_steps * self._accumulation_steps

    def set_accumulation_steps(self, count: int) -> None:
        """Later steps have ``count`` micro-batches. Raises ValueError inside a step."""
        if self.micro_batches.begun:
            raise ValueError("the number of micro-batches changes between steps, and a step has begun: change it when step() has ended it")
        self._accumulation_steps = count

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name == "_loop":  # of an object without its attributes, as copy makes one
                raise AttributeError(name)
            found = getattr(self._loop, name)
            return functools.partial(self._with_all_ranks, name, found) if name in _OF_ALL_RANKS else found

    def _with_all_ranks(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if name in _BETWEEN_PASSES and (recover := self._recover()) is not None:
            recover()
        self._note(name)
        with self._following_drops(), ranks.inside():
            return call(*arguments)

    @contextlib.contextmanager
    def _following_drops(self) -> Iterator[None]:
        """For a call of the extension that may drop the gradients of the step so far."""
        before = self._loop.drops
        try:
            yield
        finally:
            if self._loop.drops != before:
                self.micro_batches.begin_anew()
                self._note_left()

    def __reduce__(self) -> Any:
        refuse_copies()

    def _range(self, what: str, unit: int | None = None) -> contextlib.AbstractContextManager[Any]:
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            return contextlib.nullcontext()
        name = f"sluice.{what}" if unit is None else f"sluice.{what} {self._names[unit]}"
        return torch.profiler.record_function(name)

    def _note(self, what: str) -> None:
        if self._group is not None:
            ranks.set_doing(f"step {self._loop.step + 1}, {what}")

    def check_open(self) -> None:
        """Raises ValueError after close()."""
        try:
            _ = self._loop.step
        except ValueError:
            raise ValueError(
                "the engine was destroyed, or another one took its model: make another one of its model, which has values unless they "
                "were on a drive, in several ranks, or too large for memory. A Trainer that begins again destroys its engine and goes on with it: make a new Trainer"
            ) from None

    @contextlib.contextmanager
    def completing(self, folder: str) -> Iterator[None]:
        """Inside, what is beside the states of a checkpoint is loaded. After an error the loop takes only another one."""
        try:
            yield
        except BaseException:
            self._loop.load_failed(folder)
            raise

    def enter(self, unit: int, training: bool) -> None:
        """Gathers the unit; its parameters are views of the weights until leave(). Blocks."""
        self._note(f"{self._pass} of {self._names[unit]}")
        if self._bar is not None and training:
            self._bar.enter(self._loop.step + 1, self._names[unit])
        with self._gathering(unit):
            self._loop.enter(unit, training)

    def show(self, unit: int) -> None:
        """As :meth:`enter`, for a look between passes. Blocks."""
        self._note(f"GatheredParameters of {self._names[unit]}")
        with self._gathering(unit):
            self._loop.show(unit)

    @contextlib.contextmanager
    def _gathering(self, unit: int) -> Iterator[None]:
        if self._frozen is not None:
            self._frozen.entering(unit)
        with ranks.inside(), self._range("gather", unit):
            yield
        self._guards.entered(unit)

    def leave(self, unit: int) -> None:
        """Ends one enter() of the unit."""
        self._loop.leave(unit)
        self._left(unit)

    def hide(self, unit: int) -> None:
        """Ends one show() of the unit."""
        try:
            self._loop.hide(unit)
        finally:
            self._left(unit)

    def _left(self, unit: int) -> None:
        self._guards.left(unit)
        if self._frozen is not None:
            self._frozen.left(unit)

    def lend(self, unit: int) -> None:
        """A unit that was entered is used outside its own forward."""
        self._guards.lent(unit)

    def guard(self, units: Iterable[Iterable[torch.Tensor]]) -> None:
        """After initialize(): what would use parameters that are not here raises. ``units``: the parameters of each unit."""
        gathered = [list(unit) for unit in units]
        self._guards = Guards(gathered)
        if self._frozen is not None:
            self._frozen = FrozenInPasses(gathered)

    @contextlib.contextmanager
    def scaled(self) -> Iterator[None]:
        """For a backward of an engine, which begins with a loss times :attr:`loss_scale`."""
        self._is_scaled = True
        try:
            with begun_by_engine():
                yield
        finally:
            self._is_scaled = False

    def scaled_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """``loss`` times :attr:`loss_scale`, for a backward of the script's."""
        scaled = loss.float() * self._loop.loss_scale
        scaled.register_hook(self._begin_scaled)
        return scaled

    def _begin_scaled(self, gradient: torch.Tensor) -> None:
        self._is_scaled_by_script = True
        torch.autograd.Variable._execution_engine.queue_callback(self._end_scaled)

    def _end_scaled(self) -> None:
        self._is_scaled_by_script = False

    def end_failed_scaled(self) -> None:
        """Outside a backward: a scaled one that has failed before it reached a unit has not called its end."""
        if self._is_scaled_by_script and torch._C._current_graph_task_id() == -1:
            self._end_scaled()

    @property
    def is_scaled(self) -> bool:
        """Whether the backward in progress began with a loss times :attr:`loss_scale`."""
        return self._is_scaled or self._is_scaled_by_script

    def add_loss(self, loss: torch.Tensor) -> None:
        """Counts a micro-batch's loss to the step's."""
        configured = self._loop.accumulation_steps  # by which the extension divides the sum
        self._loop.add_loss(loss if configured == self._accumulation_steps else loss.detach() * (configured / self._accumulation_steps))
        self.micro_batches.has_loss = True
        self.micro_batches.begin_gradients()

    def start_backward(self, is_whole: bool = False) -> None:
        """Begins a backward, once the last step's updates have ended. ``is_whole``: it is of all micro-batches of a step. Blocks."""
        self._pass = "backward"
        groups: Sequence[Mapping[str, float]] = ()
        updates = self._loop.updates_in_backward
        if (updates or self._loop.speculates) and (values := self._values()) is not None:
            with contextlib.nullcontext() if updates else contextlib.suppress(ValueError):  # end_step() raises it, if the values are still these
                groups = values()
        if updates and self._group is not None:
            self._group.step_values = groups  # compared before the first update
        is_boundary = self._is_boundary()
        is_last = True if is_whole else None if is_boundary is None else is_boundary()
        with ranks.inside(), self._range("finish_updates"):
            self._loop.begin_backward(groups, is_last)

    def begin_gradients(self, unit: int) -> None:
        """Gives the unit's parameters memory for their gradients. Blocks."""
        with ranks.inside(), self._range("begin_gradients", unit):
            self._loop.begin_gradients(unit)

    def send_gradients(self, unit: int, awaited: Sequence[int]) -> None:
        """Sends the unit's gradients to their home, reduced over the ranks. ``awaited``: units whose backward this one may still have."""
        with ranks.inside(), self._range("send_gradients", unit):
            self._note(f"gradients of {self._names[unit]}")
            self._loop.send_gradients(unit, awaited)

    def end_micro_batch(self) -> None:
        """Ends the micro-batch; the next pass is a forward."""
        self._pass = "forward"
        self._loop.end_micro_batch()

    def forget_gradients(self) -> None:
        """Drops the step's gradients and begins its micro-batches anew."""
        self._pass = "forward"
        self._forget(begins_anew=True)

    def drop_gradients(self) -> None:
        """Drops the gradients of the step so far, if step() has not counted the last backward. The count of its micro-batches stays.

        Raises ValueError where they are updates already.
        """
        self.end_failed_scaled()
        if self.micro_batches.has_gradients and self._loop.waits_for_step:
            raise ValueError(
                f"the gradients of step {self._loop.step + 1} cannot be dropped: its backward has updated the units (optimizer_in_backward). "
                "Call step() first, and zero_grad() between step() and backward"
            )
        if self.micro_batches.has_new_gradients:
            self._forget()

    def drop_gradients_of(self, names: Iterable[str]) -> None:
        """As :meth:`drop_gradients`, but of some parameters: theirs become zero. Every rank calls it."""
        for name in names:
            if not self.micro_batches.has_new_gradients:  # also after a backward that failed, whose gradients the first call drops
                return
            gradient: torch.Tensor | None = self.gradient(name)
            if gradient is not None:
                self.set_gradient(name, torch.zeros_like(gradient))

    def _forget(self, begins_anew: bool = False) -> None:
        """``begins_anew``: with the count of micro-batches, unless the step has updated units and keeps its gradients."""
        before = self._loop.drops
        self._loop.forget_gradients()
        if self._loop.drops != before:
            self.micro_batches.begin_anew() if begins_anew else self.micro_batches.drop_gradients()
        self._note_left()

    def _note_left(self) -> None:
        self._guards.all_left()
        if self._frozen is not None:
            self._frozen.all_left()

    def end_step(self, groups: Sequence[Mapping[str, float]]) -> StepResult:
        """Updates by the step's gradients, or skips. Raises ValueError where a backward lacked the loss scale."""
        if self.micro_batches.has_unscaled_gradients:
            raise ValueError(
                f"the step has gradients of a backward without the loss scale of fp16, {self._loop.loss_scale:g}, by which they "
                "would be divided: call engine.backward(loss) in place of loss.backward(), with scale_wrt_gas=False for a loss "
                "that you divide by the micro-batches yourself, or engine.scale(loss).backward(). engine.zero_grad() drops these "
                "gradients"
            )
        self._note("its end")
        if self._group is not None:
            self._group.step_values = groups
        with self._following_drops(), ranks.inside(), self._range("end_step"):
            result = self._loop.end_step(groups)
        self.micro_batches.begin_anew()
        if self._bar is not None:
            self._bar.end()
        return result
