"""Backwards of a model's units: each unit is gathered when its first gradient comes, and sends its gradients at its end."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..owners import owner_of
from ..watched_loop import WatchedLoop
from .unit_states import Call, State
from .writes import refuse


def _accumulates(parameter: torch.Tensor) -> bool:
    """Whether the backward in progress adds to a parameter's gradient. Those of torch.autograd.grad add to none."""
    if not parameter.requires_grad:  # for now, as under PEFT's disable_adapter()
        return False
    with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():  # it may be empty
        view: Any = parameter.view_as(parameter)
    try:
        return bool(torch._C._will_engine_execute_node(view.grad_fn.next_functions[0][0]))
    except RuntimeError:  # torch.autograd.grad returns this one's gradient
        return False


def _refuse_graphs() -> None:
    if torch.is_grad_enabled():  # in a backward only with create_graph
        raise ValueError(
            "create_graph=True: the weights are gone when a backward through this backward needs them, so gradients of "
            "gradients (a gradient penalty) are not possible"
        )


def _before_gradient(backwards: weakref.ref[Backwards], number: int, gradient: torch.Tensor) -> None:
    """The hook on a parameter. It holds nothing: Python collects no cycle by way of a tensor that the loop has too."""
    found = backwards()
    if found is not None:
        found.before_gradient(number)


class Backwards:
    """The units that are open in a backward.

    ``claim``: calls :meth:`note_begun` where no other thread is inside a pass, and returns what it does. ``drop_lost``: cleans
    up after a backward that has failed, and drops the gradients of a step that is lost.
    """

    def __init__(
        self, loop: WatchedLoop, states: Sequence[State], claim: Callable[[], bool], drop_lost: Callable[[], None]
    ) -> None:
        self._loop, self._claim, self._drop_lost = loop, claim, drop_lost
        self.is_running = False  # a backward has begun; it stays True where an exception ends it
        self._task: Callable[[], object] = lambda: None  # a weak reference to what PyTorch keeps for the running backward
        self._has_gradients = True  # of parameters, in the backward in progress
        self.by_layers = False  # a step goes layer by layer: its backwards are those of one micro-batch
        self._open: list[Call] = []  # calls whose backward has begun, in order
        self._lent: list[Call] = []  # those of them that no output has opened
        self._states_of: dict[torch.Tensor, list[State]] = {}  # by parameter that trains
        for state in states:
            for parameter in state.parameters:
                if parameter.requires_grad:
                    self._states_of.setdefault(parameter, []).append(state)
        self._trained = list(self._states_of.items())
        self._updates = loop.updates_in_backward
        self._sharing = self._sharing_units() if self._updates else {}
        with torch._C.DisableTorchFunctionSubclass():
            self._handles = [
                parameter.register_hook(functools.partial(_before_gradient, weakref.ref(self), number))  # type: ignore[no-untyped-call]
                for number, (parameter, _) in enumerate(self._trained)
            ]

    def remove(self) -> None:
        """Takes the hooks off the parameters. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def await_call(self, call: Call) -> None:
        """A forward begins whose graph may have a backward. One inside a backward, whose activations are computed again, is of that."""
        if self._updates and not self.is_on():
            call.state.awaited.add(call)

    def _sharing_units(self) -> dict[State, set[State]]:
        """By unit: those that add to gradients which are updated together with one of it. A parameter's are with those of the first unit that has it."""
        adding: dict[State, set[State]] = {}
        for first, *others in self._states_of.values():
            adding.setdefault(first, set()).update((first, *others))
        sharing: dict[State, set[State]] = {}
        for states in adding.values():
            for state in states:
                sharing.setdefault(state, set()).update(states)
        return sharing

    def _awaited(self, state: State) -> list[int]:
        """Those of :meth:`_sharing_units` whose graphs may have another backward in this step, ``state`` itself included."""
        version = self._loop.weights_version if self._updates else None
        return [each.index for each in self._sharing.get(state, ()) if any(call.weights_version == version for call in each.awaited)]

    def begin_call(self, call: Call, gradient: torch.Tensor) -> None:
        """The hook on outputs of a call: gathers its unit, at the first of them."""
        if call.is_open:
            return
        state = call.state
        _refuse_graphs()
        if call.weights_version != self._loop.weights_version:
            raise RuntimeError(
                f"weights have changed since the forward of {state.name}: backward comes before step(), before a checkpoint is loaded "
                "and before a weight is set"
            )
        self.begin()
        self._open_call(call)

    def close(self, call: Call) -> None:
        """Ends the backward of a call: nothing of the graph needs the unit's weights for it any more."""
        if not call.is_open:
            return
        call.is_open = False
        self._open.remove(call)
        call.state.awaited.discard(call)
        self.close_state(call.state)

    def open_state(self, state: State) -> None:
        """Gathers a unit, and gives it memory for its gradients."""
        if state.open_calls == 0:
            self._loop.enter(state.index, True)
            state.writes_before = state.writes.count()
            state.has_gradients = False
            if self._has_gradients or any(map(_accumulates, state.parameters)):  # of a graph inside another one, as of use_reentrant=True
                self._begin_state(state)
        state.open_calls += 1

    def _begin_state(self, state: State) -> None:
        if not self._has_gradients:
            self._begin_gradients()
        state.has_gradients = True
        self._loop.begin_gradients(state.index)

    def close_state(self, state: State) -> None:
        """Ends one :meth:`open_state`. The last one sends the gradients."""
        state.open_calls -= 1
        if state.open_calls == 0:
            lost = state.writes.lost(state.writes_before, "backward")
            if state.has_gradients:
                self._loop.send_gradients(state.index, self._awaited(state))
            self._loop.leave(state.index)
            refuse(lost)

    def abandon(self) -> None:
        """Forgets the backward in progress. The caller drops the gradients, and leaves the units."""
        for call in self._open:
            call.is_open = False
        self._open.clear()
        self._lent.clear()
        self.is_running = self.by_layers = False
        self._has_gradients = True

    def _open_call(self, call: Call) -> None:
        self.open_state(call.state)
        call.is_open = True
        self._open.append(call)

    def before_gradient(self, number: int) -> None:
        """A gradient comes to the parameter of this number. A unit that is here, and open by no output, is open to the end of the backward.

        So a backward inside the unit's own forward keeps its gradients, and one through a weight that GatheredParameters shows.
        Raises RuntimeError where the unit is not here: its weights have been missing in the backward so far.
        """
        parameter, states = self._trained[number]
        opened = [state for state in states if state.open_calls > 0]
        is_begun = any(state.has_gradients for state in opened)
        if (is_begun and self._loop.micro_batches.has_new_gradients) or not _accumulates(parameter):
            return
        self._loop.micro_batches.begin_gradients()
        if opened:
            for state in opened if not is_begun else ():  # its parameters are in a graph inside the one that has opened it
                self._begin_state(state)
            return
        with torch._C.DisableTorchFunctionSubclass():
            is_here = parameter.numel() > 0
        if not is_here:
            owner = owner_of(parameter)
            raise RuntimeError(
                f"parameter {owner.name if owner else ''} has a gradient from outside its unit's backward, where the weights of unit "
                f"{states[0].name} are not here: a tensor has left the unit other than as an output, by an attribute, a hook or an "
                "object outside. Return it from the unit's forward, and give it to the module that uses it"
            )
        _refuse_graphs()
        self.begin()
        here = next((state for state in states if state.entered or state.is_borrowed), states[0])
        call = Call(here, self._loop.weights_version)
        self._open_call(call)
        self._lent.append(call)

    def begin(self) -> None:
        """The first gradient of an output of the model, or of a unit, is there. A second call in a backward does nothing."""
        if not self._claim():
            return
        # Gradients of inputs alone, as by torch.autograd.grad, update nothing.
        self._has_gradients = not self._updates or self.by_layers or any(map(_accumulates, self._states_of))
        if self._has_gradients:
            self._begin_gradients()

    def _begin_gradients(self) -> None:
        self._has_gradients = True
        if not self._loop.is_scaled and self._loop.loss_scale != 1 and any(map(_accumulates, self._states_of)):
            self._loop.micro_batches.has_unscaled_gradients = True
        self._loop.start_backward(is_whole=self.by_layers)

    def note_begun(self) -> bool:
        """Notes that a backward runs. Returns whether this is the first call in it."""
        if self.is_on():
            return False
        self._drop_lost()
        self._task = self._queued()
        self.is_running = True
        return True

    def is_on(self) -> bool:
        """Whether a backward runs: one that an exception has ended does not."""
        return self.is_running and self._task() is not None

    def _queued(self) -> Callable[[], object]:
        """Has PyTorch call :meth:`_end` after the backward. PyTorch keeps the function until then, or until an exception."""
        end = functools.partial(self._end)
        torch.autograd.Variable._execution_engine.queue_callback(end)
        return weakref.ref(end)

    def _end(self) -> None:
        for call in reversed(list(self._open)):
            self.close(call)
        for call in self._lent:
            self._forget_gradients(call.state)
        self._lent.clear()
        try:
            if not self.by_layers and self._has_gradients:
                self._loop.end_micro_batch()
        finally:
            self.is_running = False
            self._has_gradients = True

    def _forget_gradients(self, state: State) -> None:
        """A unit that stays entered would show gradients in memory that is no longer theirs."""
        with torch._C.DisableTorchFunctionSubclass():
            for parameter in state.parameters:
                if parameter.numel() > 0 and not any(other.open_calls for other in self._states_of.get(parameter, ())):
                    parameter.grad = None
