"""Micro-batches of a loader, and the loss of a model's output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch


def sampler_of(dataset: Any, route: str, world_size: int) -> Any:
    """The order of a dataset's samples: of all of them, or of this rank's part; None where the dataset has its own."""
    if route not in ("train", "eval", "predict"):
        raise ValueError(f"route is {route!r}: train, eval or predict")
    if isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"{type(dataset).__name__} is no torch Dataset: one has __getitem__ and __len__, or is an IterableDataset")
    shuffles = route == "train"
    if world_size > 1:
        return torch.utils.data.DistributedSampler(dataset, shuffle=shuffles)
    return torch.utils.data.RandomSampler(dataset) if shuffles else torch.utils.data.SequentialSampler(dataset)


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def call(model: Callable[..., Any], batch: Any) -> Any:
    """Tuples are the arguments of forward, dicts its keywords."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


def loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    if hasattr(output, "loss") and output.loss is not None:
        loss: torch.Tensor = output.loss
        return loss
    if isinstance(output, (tuple, list)) and output and isinstance(output[0], torch.Tensor):
        return output[0]
    raise ValueError("train_batch() needs a model whose forward returns the loss, alone or first, or an output with .loss")
