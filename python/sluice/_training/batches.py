"""Micro-batches of a loader, and the loss of a model's output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from ..runtime.dataloader import RepeatingLoader


class _RankSampler(torch.utils.data.DistributedSampler[Any]):
    """A rank's part of the samples. Each iteration is an epoch with an order of its own, as with RandomSampler."""

    def __iter__(self) -> Iterator[Any]:
        order = super().__iter__()
        self.set_epoch(self.epoch + 1)
        return order


def cast_floating(values: Any, dtype: torch.dtype) -> Any:
    """The values, with their floating-point tensors in this type: in lists, tuples and dicts too, which are new ones."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, values)


def sampler_of(dataset: Any, route: str, world_size: int) -> Any:
    """The order of a dataset's samples: of all of them, or of this rank's part; None where the dataset has its own."""
    if route not in ("train", "eval", "predict"):
        raise ValueError(f"route is {route!r}: train, eval or predict")
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"{type(dataset).__name__} is no torch Dataset: one has __getitem__ and __len__, or is an IterableDataset")
    shuffles = route == "train"
    if shuffles and len(dataset) == 0:
        raise ValueError("the training data have no sample: pass a dataset with some, or none and batches of your own")
    if world_size > 1:
        return _RankSampler(dataset, shuffle=shuffles)
    return torch.utils.data.RandomSampler(dataset) if shuffles else torch.utils.data.SequentialSampler(dataset)


class Endless(Iterator[Any]):
    """Begins again when the loader has ended, and goes on after an exception of it. Raises ValueError for one without a batch."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._batches = RepeatingLoader(loader)

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            raise ValueError(
                "the training data have no batch: they are empty, or fewer than a batch and dropped, or can be read only once"
            ) from None


def call(model: Callable[..., Any], batch: Any) -> Any:
    """Tuples are the arguments of forward, dicts its keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


@dataclass
class Part:
    """A micro-batch for a model with one input."""

    inputs: Any
    targets: Any
    loss_fn: Callable[[Any, Any], torch.Tensor] | None

    def loss_of(self, output: Any) -> torch.Tensor:
        """The loss of the model's output: by the function of the loss, or the output's own."""
        return loss_of(output) if self.loss_fn is None else self.loss_fn(output, self.targets)


def of_sequence(batch: Any, loss_fn: Callable[[Any, Any], torch.Tensor] | None) -> Part:
    """A loader's batch: with a function of the loss, a pair of input and targets; else the input, alone or in a tuple of one."""
    if loss_fn is not None:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ValueError("with loss_fn a batch is a pair: the model's input, and what loss_fn takes beside the output")
        return Part(batch[0], batch[1], loss_fn)
    if isinstance(batch, (tuple, list)):
        if len(batch) != 1:
            raise ValueError(f"an nn.Sequential takes one input, and the batch has {len(batch)}: pass loss_fn, for pairs of input and targets")
        return Part(batch[0], None, None)
    return Part(batch, None, None)


def loss_of_batch(model: Callable[..., Any], batch: Any, loss_fn: Callable[[Any, Any], torch.Tensor] | None) -> torch.Tensor:
    """The loss of a forward over the batch. Raises ValueError as :func:`of_sequence` and :func:`loss_of`."""
    if loss_fn is None:
        return loss_of(call(model, batch))
    part = of_sequence(batch, loss_fn)
    return part.loss_of(model(part.inputs))


def loss_of(output: Any) -> torch.Tensor:
    """The loss in a forward's output. Raises ValueError where the output holds no loss."""
    if isinstance(output, torch.Tensor):
        return output
    if hasattr(output, "loss") and output.loss is not None:
        loss: torch.Tensor = output.loss
        return loss
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    raise ValueError("train_batch() needs a model whose forward returns the loss, alone or first, or an output with .loss")


def check_loss(loss: Any, trains: bool) -> None:
    """Raises ValueError for what no backward can begin with. ``trains``: the engine has an optimizer."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError("backward() takes a loss of one element")
    if not loss.requires_grad:
        why = "" if trains else ': initialize() was given no optimizer, and no "optimizer" section'
        raise ValueError(f"the loss depends on no parameter that trains{why}")
