"""Compares the arguments of GatheredParameters with ``modifier_rank`` over the ranks, before any value is sent."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import ranks
from ..owners import Owner
from ..start.agreement import first_difference

_ORDER = (
    "Give them in one order on all ranks: that of named_parameters(), and no set of parameters, whose order differs between "
    "processes"
)


class Given(NamedTuple):
    """One rank's arguments: parameters of engines by name, those of no engine by kind, and why its changes cannot be kept."""

    modifier_rank: int
    named: list[str]
    kinds: list[tuple[list[int], str, bool]]
    refused: set[str]


def given_by(
    modifier_rank: int, gathered: list[tuple[torch.Tensor, Owner]], others: list[torch.Tensor], refused: set[str]
) -> Given:
    """As this rank has it."""
    named = [f"{owner.name} of engine {owner.model.loop.number}" for _, owner in gathered]
    return Given(modifier_rank, named, [(list(one.shape), str(one.dtype), one.is_meta) for one in others], refused)


def why_refused(own: Given, place: str) -> str:
    """Why no rank keeps or sends a value: the ranks do not give the same, or one has what cannot be kept. Every rank calls it.

    Empty where all is well. ``place``: the begin or the end, for the other ranks.
    """
    ranks.set_doing(f"the {place} of GatheredParameters")
    everyone = ranks.gather("parameters of GatheredParameters", own) if ranks.world_size() > 1 else [own]
    differences = (_difference(everyone, other) for other in range(len(everyone)))
    refused = set[str]().union(*(each.refused for each in everyone))
    return next(filter(None, differences), "") or min(refused, default="")


def _difference(everyone: list[Given], other: int) -> str:
    """The difference between rank ``other`` and rank 0, or the rank that all of them name as the modifier."""
    root = everyone[0].modifier_rank
    if everyone[other].modifier_rank != root:
        return (
            f"modifier_rank of GatheredParameters is {root} on rank 0 and {everyone[other].modifier_rank} on rank {other}, and no "
            "change is kept: all ranks name the one rank whose values they get"
        )
    lost = f"the values of modifier_rank={root} reach no rank"
    begin = "the ranks do not give GatheredParameters the same parameters"
    place = first_difference(everyone[0].named, everyone[other].named)
    if place is not None:
        both = everyone[0].named, everyone[other].named
        here, there = (named[place] if place < len(named) else "none of an engine" for named in both)
        return f"{begin}: parameter {place} of an engine is {here} on rank 0, and {there} on rank {other}: {lost}. {_ORDER}"
    kinds, theirs = everyone[root].kinds, everyone[other].kinds
    place = first_difference(kinds, theirs)
    if place is None:
        return ""
    here, there = (_text(kind[place]) if place < len(kind) else f"{len(kind)} parameters" for kind in (kinds, theirs))
    return (
        f"{begin}: parameter {place} of no engine is {here} on rank {root}, and {there} on rank {other}: {lost}. Build the model "
        f"alike on all ranks, and set values of a parameter's own shape. {_ORDER}"
    )


def _text(kind: tuple[list[int], str, bool]) -> str:
    shape, dtype, is_meta = kind
    return f"of shape {shape} and {dtype}{' on the meta device' if is_meta else ''}"


def share(parameters: list[torch.Tensor], root: int) -> None:
    """Gives all ranks the values of ``root``, of parameters of no engine."""
    ranks.share([one for one in parameters if not one.is_meta and one.numel() > 0], root)
