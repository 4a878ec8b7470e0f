"""Steps layer by layer, for a model that is a sequence of units: all micro-batches pass a layer before the next one.

Weights then move twice in a step however many micro-batches it has, and gradients once. The price is memory: inputs and
activations of all micro-batches are there when backward begins.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .hooks import Hooks
from .inputs import share_attributes
from ..shown.step_times import StepTimes
from ..units import Unit


def layers_of(model: nn.Module, units: Sequence[Unit]) -> list[tuple[nn.Module, int | None]]:
    """The children of an ``nn.Sequential``, with the units that they are; None: without parameters.

    Raises ValueError, with the reason, for a model that is no sequence of units.
    """
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        raise ValueError(f"a step goes layer by layer through an nn.Sequential, and the model is a {type(model).__name__}")
    indices = {unit.module: index for index, unit in enumerate(units)}
    for name, child in model.named_children():
        if child not in indices and next(child.parameters(), None) is not None:
            raise ValueError(f"a step goes layer by layer where each layer is one unit, and layer {name} has several: see units=")
    return [(child, indices.get(child)) for child in model]


def schedule_line(model: nn.Module, units: Sequence[Unit], micro_batches: int) -> str | None:
    """For the choices of a plan: how often weights that live elsewhere move in a step. None for one micro-batch."""
    if micro_batches == 1:
        return None
    line = f"schedule: {micro_batches} micro-batches one after the other: weights move to the device for each, and gradients home where they do not add up on it"
    try:
        layers_of(model, units)
    except ValueError:
        return line
    return f"{line}. train_batch(by_layer=True) moves them twice in a step, for forward and for backward, and needs the memory of {micro_batches} micro-batches' activations"


class Layers:
    """The layers of a model that is a sequence of units. Raises ValueError for another."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], hooks: Hooks) -> None:
        self._layers = layers_of(model, units)
        self._hooks = hooks

    def run(self, inputs: list[Any], loss_of: Callable[[int, Any], torch.Tensor], times: StepTimes) -> None:
        """Forward and backward of a step. ``loss_of``: from a micro-batch's number and output what backward begins with.

        Gradients are sent; the step is not ended. After an exception the gradients of the step are dropped.
        """
        self._hooks.begin_layers()
        try:
            with times.of("fwd"):
                graphs, outputs = self._forward(inputs)
            losses = [loss_of(part, output) for part, output in enumerate(outputs)]
            with times.of("bwd"):
                self._backward(graphs, losses)
        except BaseException:
            self._hooks.abandon()
            raise
        self._hooks.end_layers()

    def _forward(self, values: list[Any]) -> tuple[list[list[_Cut]], list[Any]]:
        graphs = []
        for module, unit in self._layers:
            cuts = [_Cut(value) for value in values]
            graphs.append(cuts)
            with self._held(unit):
                values = [module(cut.value) for cut in cuts]
        return graphs, values

    def _held(self, unit: int | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if unit is None else self._hooks.held(unit)

    def _opened(self, unit: int | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if unit is None else self._hooks.opened(unit)

    def _backward(self, graphs: list[list[_Cut]], losses: list[torch.Tensor]) -> None:
        begun: list[_Ends] = [([loss], [None]) for loss in losses]
        for (_, unit), cuts in zip(reversed(self._layers), reversed(graphs)):
            with self._opened(unit):
                for tensors, gradients in begun:
                    if tensors:
                        torch.autograd.backward(tensors, gradients)
            begun = [cut.ends() for cut in cuts]


_Ends = tuple[list[torch.Tensor], "list[torch.Tensor | None]"]


class _Through(torch.autograd.Function):
    """A layer's input, which the layer may change in place as it may not a leaf. Memory and version are those of the leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:  # type: ignore[override]
        return gradient


class _Cut:
    """A value between two layers, whose graphs are apart: ``value`` is what the later layer takes."""

    def __init__(self, value: Any) -> None:
        leaves, spec = tree_flatten(value)
        self._pairs = []
        for index, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                begin = leaf.detach().requires_grad_()
                leaves[index] = share_attributes(_Through.apply(begin), leaf)
                self._pairs.append((leaf, begin))
        self.value = tree_unflatten(leaves, spec)

    def ends(self) -> _Ends:
        """Outputs of the earlier layer with their gradients, after the later layer's backward."""
        pairs = [(before, after.grad) for before, after in self._pairs if after.grad is not None]
        return [before for before, _ in pairs], [gradient for _, gradient in pairs]
