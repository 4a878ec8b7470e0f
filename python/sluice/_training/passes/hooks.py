"""Hooks on a model's forward and backward that gather units, and send their gradients.

The graph is the user's own. Weights in it are views of memory that is there while the unit is entered:

- forward of a unit: gather, compute, release.
- backward (``backwards.py``): the first gradient of an output gathers the unit again. The gradients of its inputs, or
  the end of the backward, send the unit's gradients and release it.
- a parameter that is registered with another module or used outside its unit: gathered until the model's forward ends,
  and again from the first gradient of the model's outputs, or of a result of that use, to the end of the backward.

Confined to one thread at a time, and PyTorch's thread of a backward while that one waits. A forward in a second one raises.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from ..units import Unit
from ..watched_loop import WatchedLoop
from . import zero_grads
from .backwards import Backwards
from .containers import RECORDS, swapped, tensors_in
from .inputs import Inputs, with_bases
from .one_thread import OneThread, is_called
from .parametrized import keep_counts_of_writes
from .transforms import refuse_in_graph, refuse_transforms
from .unit_states import Call, State
from .watched import unwatch, watch
from .writes import Writes, refuse, rescaled_tables

log = logging.getLogger("sluice")

_USE = "weights, gradients or states are read or changed"

_BORROWED = (
    "%s is gathered until the model's forward ends, and in its whole backward, since the forward calls a module inside it or uses "
    "its weight from outside: %s. initialize(..., units=[...]) with smaller units takes less memory"
)


class Hooks:
    """The hooks of a model's units. ``loop``: an initialised ``_engine.Loop`` with these units.

    ``keeps``: what lives as long as the model has these hooks, even where a script drops its engine.
    """

    def __init__(
        self, model: nn.Module, units: list[Unit], loop: WatchedLoop, only_computes: bool = False, keeps: object = None
    ) -> None:
        self.model, self.loop = model, loop
        self._modules = {model, *(unit.module for unit in units)}
        self._keeps = keeps
        keep_counts_of_writes()
        rescaled = rescaled_tables(model)
        self._states = [
            State(index, unit, Writes(unit.name, unit.params, rescaled, loop.is_weight), only_computes)
            for index, unit in enumerate(units)
        ]
        self._handles: list[Any] = []
        self._depth = 0  # of the model's own forward
        self._borrowed: list[Call] = []  # units that another module's forward uses, in this forward
        self._watched: list[nn.Module] = []
        self.is_undivided_noted = False  # a warning has named an output whose gradient is not divided
        self._is_changing = False  # see _changing()
        self._is_step_lost = False  # see drop_step()
        self._backwards = Backwards(loop, self._states, self._claim_backward, self._drop_lost)
        self._thread = OneThread(self._modules, self._backwards)
        for unit, state in zip(units, self._states):
            before = functools.partial(self._before_forward, state)
            after = functools.partial(self._after_forward, state)
            self._handles.append(unit.module.register_forward_pre_hook(before, prepend=True, with_kwargs=True))
            self._handles.append(unit.module.register_forward_hook(after, with_kwargs=True, always_call=True))
            if unit.module._parameters:
                watch(unit.module, functools.partial(self._parameter_used, state))
                self._watched.append(unit.module)
        # The last one of those that come first: before the hook of a unit that is the model itself.
        self._handles.append(model.register_forward_pre_hook(self._before_model, prepend=True))
        self._handles.append(model.register_forward_hook(self._after_model, always_call=True))
        zero_grads.replace(model, self._zero_grad)
        loop.recover_by(weakref.WeakMethod(self.recover_between_passes))

    def remove(self) -> None:
        """Takes the hooks off the model. A second call does nothing."""
        zero_grads.restore(self.model)
        for module in self._watched:
            unwatch(module)
        self._watched.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._backwards.remove()
        self._keeps = None

    # Forward

    @property
    def is_in_forward(self) -> bool:
        """Whether the model's own forward is under way."""
        return self._depth > 0

    @property
    def is_computing(self) -> bool:
        """Whether a forward of the model, of its layers or of a unit is under way."""
        return self._depth > 0 or self._backwards.by_layers or any(state.entered for state in self._states)

    def _before_model(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():  # a break of the graph; compiled units claim the pass
            self._thread.claim()
        refuse_transforms()
        self.recover()
        self.loop.end_failed_scaled()
        if self._is_left_open() and not self._is_called(besides=1):
            self.leave_forwards()  # of a call that an exception ended, and not of one around this one
        self._depth += 1

    def _after_model(self, module: nn.Module, args: Any, output: Any) -> Any:
        if not torch.compiler.is_compiling() and not self._thread.is_mine():  # this one's was refused
            return None
        self._depth = max(self._depth - 1, 0)
        replaced, kept = output, None
        if self._borrowed:
            replaced = swapped(output, self._own_weight)
            kept = None if isinstance(replaced, torch.Tensor) else self._kept_weight("the model's forward", replaced)
        if torch.is_grad_enabled() and self._borrowed:
            for tensor in with_bases(tensors_in(replaced)):
                for call in self._borrowed:
                    tensor.register_hook(functools.partial(self._backwards.begin_call, call))
        if self._depth == 0:  # else the model's forward has called the model
            self._give_back()
        refuse(kept)
        return replaced if replaced is not output else None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Units are entered or left inside. After an exception it stays noted, also by calls around and after it: some unit may be open."""
        before, self._is_changing = self._is_changing, True
        yield
        self._is_changing = before

    def _give_back(self) -> None:
        if not self._borrowed:
            return
        lost = None
        with self._changing():
            for call in reversed(self._borrowed):
                lost = lost or call.state.writes.lost(call.writes_before, "forward")
                self.loop.leave(call.state.index)
                call.state.is_borrowed = False
            self._borrowed.clear()
        refuse(lost)

    def borrow(self, unit: int) -> None:
        """Gathers a unit until the model's forward ends, and in its whole backward. Outside a forward it does nothing."""
        self._parameter_used(self._states[unit])

    def lend(self, unit: int, use: str) -> None:
        """As :meth:`borrow`, for a use of its parameters that only their class sees. ``use``: for a line of the log."""
        state = self._states[unit]
        self._parameter_used(state)
        if state.is_borrowed:
            self.loop.lend(unit)
        if state.is_borrowed and not state.is_noted:
            state.is_noted = True
            log.info(_BORROWED, state.name, use)

    def await_lent(self, unit: int, result: Any) -> None:
        """``result`` is of an operation with a lent parameter: its gradient begins the unit's backward."""
        made = [tensor for tensor in tensors_in(result, RECORDS) if not tensor.is_leaf]
        for call in self._borrowed:
            for tensor in with_bases(made) if call.state.index == unit else ():
                tensor.register_hook(functools.partial(self._backwards.begin_call, call))

    def _parameter_used(self, state: State) -> None:
        if self._depth == 0 or state.entered or state.is_borrowed or state.open_calls > 0 or self._thread.other():
            return
        self._thread.claim()  # of a compiled model, no hook may have done so
        with self._changing():
            self.loop.enter(state.index, torch.is_grad_enabled() or self.model.training)
            state.is_borrowed = True
            call = Call(state, self.loop.weights_version)
            call.writes_before = state.writes.count()
            if torch.is_grad_enabled():
                self._backwards.await_call(call)
            self._borrowed.append(call)

    # torch.compile of a unit's module traces its hooks too, and these are not to be traced.
    @_disable_dynamo
    def _before_forward(self, state: State, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._thread.claim()
        refuse_transforms()
        self.recover()
        if state.open_calls > 0:  # activations are computed again, inside the unit's backward
            state.entered.append(None)
            return None
        graded = torch.is_grad_enabled()
        if graded:
            refuse_in_graph(state.name, state.parameters, args, kwargs)
        with self._changing():
            call = Call(state, self.loop.weights_version)
            if call.has_entered:
                self.loop.enter(state.index, graded or self.model.training)
                call.writes_before = state.writes.count()
            state.entered.append(call)
        if not graded:
            return None
        self._backwards.await_call(call)
        call.inputs = Inputs(args, kwargs)
        return call.inputs.mark(args, kwargs, functools.partial(self._backwards.close, call))

    @_disable_dynamo
    def _after_forward(self, state: State, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if not state.entered or not self._thread.is_mine():  # entering it has failed
            return None
        call = state.entered[-1]
        replaced = swapped(output, self._own_weight)
        kept = None if isinstance(replaced, torch.Tensor) else self._kept_weight(state.name, replaced)
        if call is not None and call.inputs is not None:
            inputs, call.inputs = call.inputs, None
            replaced, made = inputs.finish(args, kwargs, replaced)
            for tensor in made:
                tensor.register_hook(functools.partial(self._backwards.begin_call, call))
        lost = None
        with self._changing():
            state.entered.pop()
            if call is not None and call.has_entered:
                lost = None if state.is_borrowed else state.writes.lost(call.writes_before, "forward")  # else when it is given back
                self.loop.leave(state.index)
        refuse(lost or kept)
        return replaced if replaced is not output else None

    def _own_weight(self, tensor: torch.Tensor) -> torch.Tensor:
        """An output that is a view of a weight, as of a table of positions, in memory of its own."""
        return tensor.clone() if self.loop.is_weight(tensor) else tensor

    def _kept_weight(self, unit: str, output: Any) -> str | None:
        """Why an output that is an object, as a dataclass, cannot be: its view of a weight would be lost with the weight."""
        if not any(self.loop.is_weight(each) for each in tensors_in(output) if not isinstance(each, nn.Parameter)):
            return None
        return (
            f"{unit} returns a view of a weight inside a {type(output).__name__}, and the weight goes when its forward ends: put "
            "a copy into it, by clone(), or return a tensor, tuple, list or dict"
        )

    # Layer by layer

    def begin_layers(self) -> None:
        """A step begins whose micro-batches pass a layer before the next one."""
        self.recover()
        self.leave_forwards()
        self._backwards.by_layers = True

    def end_layers(self) -> None:
        """Ends the micro-batch that ran layer by layer."""
        self._backwards.by_layers = False
        self.loop.end_micro_batch()

    @contextlib.contextmanager
    def held(self, unit: int) -> Iterator[None]:
        """A unit is gathered once for the forwards inside."""
        state = self._states[unit]
        self.loop.enter(unit, True)
        before = state.writes.count()
        state.is_held = True
        yield
        state.is_held = False
        lost = state.writes.lost(before, "forward")
        self.loop.leave(unit)
        refuse(lost)

    @contextlib.contextmanager
    def opened(self, unit: int) -> Iterator[None]:
        """A unit is gathered once for the backwards inside, and sends its gradients once."""
        state = self._states[unit]
        self.loop.start_backward(is_whole=True)
        self._backwards.open_state(state)
        yield
        self._backwards.close_state(state)

    @contextlib.contextmanager
    def announced(self, what: str) -> Iterator[None]:
        """A pass that an engine begins and ends. ``what``: the pass, in words. Raises ValueError where another thread is inside one."""
        with self._thread.announced(what):
            self.recover()
            yield

    def shown(self) -> contextlib.AbstractContextManager[None]:
        """Inside, a script sees whole values, in a pass of its thread or between passes. Other threads are refused, as by :meth:`announced`."""
        return self._thread.announced("GatheredParameters")

    def _claim_backward(self) -> bool:
        return self._thread.claim_backward()

    def begin_backward(self) -> None:
        """The first gradient of an output of the model, or of a unit, is there."""
        self._backwards.begin()

    def recover(self) -> None:
        """Cleans up after a backward that ended with an exception: the gradients of the step are dropped. So are those of a lost step.

        Raises ValueError while another thread is inside a pass.
        """
        if (self._backwards.is_running or self._is_step_lost) and torch._C._current_graph_task_id() == -1:
            self._thread.check(_USE)
            self._drop_lost()

    @_disable_dynamo
    def _drop_lost(self) -> None:
        if self._backwards.is_running:
            self.drop_failed()
        elif self._is_step_lost and not self._is_left_open():
            self.abandon()

    def recover_between_passes(self) -> None:
        """As :meth:`recover`, and leaves the units of a forward that an exception ended. Nothing inside a forward.

        Raises ValueError while another thread is inside a pass.
        """
        self._thread.check(_USE)
        self.recover()
        if self._is_left_open() and not self._is_called():
            self.leave_forwards()

    def _is_left_open(self) -> bool:
        """Whether a unit is entered outside of a backward: by a forward in progress, or one that an exception ended."""
        is_open = self._is_changing or self._depth > 0 or any(state.entered for state in self._states)
        return is_open and not self._backwards.is_running

    def _is_called(self, besides: int = 0) -> bool:
        """Whether this thread is inside a call of the model or of a unit. ``besides``: calls that do not count."""
        return is_called(sys._getframe(), self._modules, besides)

    def drop_failed(self) -> None:
        """After a backward that ended with an exception."""
        dropped = self.loop.drops
        self.abandon()
        if self.loop.is_half_updated:
            log.warning(
                "a backward has failed when some units had their updates (optimizer_in_backward): weights and states are a mix of two "
                "steps, until a checkpoint is loaded"
            )
        elif self.loop.drops != dropped:
            log.warning("a backward has failed: the gradients of this step so far are dropped")

    def drop_step(self) -> None:
        """Drops the gradients of the step so far. Where another thread is inside a pass, this waits for the next pass or use of weights."""
        self._is_step_lost = True
        with contextlib.suppress(ValueError), self._thread.announced("a drop of gradients"):
            self.abandon()

    def drop_gradients(self) -> None:
        """Drops the gradients of the step so far. Nothing where no backward has come since step() counted a micro-batch."""
        self.recover_between_passes()
        self.loop.drop_gradients()

    def _zero_grad(self, set_to_none: bool = True) -> None:
        """Module.zero_grad of the model: drops the gradients of the step so far."""
        self.drop_gradients()

    def leave_forwards(self) -> None:
        """Leaves the units whose forward an exception ended: PyTorch calls no hook after a KeyboardInterrupt.

        An exception between a call of the loop and the note of it drops the gradients of the step so far. Nothing while
        another thread is inside a pass.
        """
        if self._thread.other():
            return
        if self._is_changing:
            log.warning("an exception came while a unit was gathered or released: the gradients of this step so far are dropped")
        if self._is_changing or self._is_step_lost:
            self.abandon()
            return
        for state in self._states:
            while state.entered:
                call = state.entered.pop()
                if call is not None and call.has_entered:
                    self.loop.leave(state.index)
        self._give_back()
        self._depth = 0

    def abandon(self) -> None:
        """Drops the gradients of the step in progress, and leaves every unit."""
        for state in self._states:
            state.open_calls = 0
            state.entered.clear()
            state.is_borrowed = state.is_held = False
        self._borrowed.clear()
        self._depth = 0
        self._is_changing = self._is_step_lost = False
        self._backwards.abandon()
        self.loop.forget_gradients()
