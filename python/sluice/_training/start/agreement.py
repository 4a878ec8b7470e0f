"""Values that all ranks must have alike, and the error that says where they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import ranks

_SHOWN = 6  # names of a list that differs


def check_agreement(facts: Mapping[str, Any]) -> None:
    """Raises ValueError on every rank when one of them has another value of a fact."""
    if ranks.world_size() == 1:
        return
    everyone = ranks.gather("comparison of their values", dict(facts))
    for other, theirs in enumerate(everyone):
        for name in sorted({*everyone[0], *theirs}):
            here, there = everyone[0].get(name, "none"), theirs.get(name, "none")
            if here != there:
                shown = _difference(here, there), _difference(there, here)
                raise ValueError(
                    f"the ranks train different things: {name} is {shown[0]} on rank 0 and {shown[1]} on rank {other}{_way_out(here, there)}"
                )


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first place at which two lists differ; None where they do not."""
    found = (place for place, (a, b) in enumerate(zip(one, other)) if a != b)
    return next(found, None if len(one) == len(other) else min(len(one), len(other)))


def _difference(value: Any, other: Any) -> Any:
    """Shows a value; a list of names from where it differs from the other one, and a few of it."""
    if not isinstance(value, list) or not isinstance(other, list):
        return value
    first = first_difference(value, other) or 0
    shown = [*(["..."] if first else []), *map(str, value[first : first + _SHOWN]), *(["..."] if len(value) > first + _SHOWN else [])]
    return f"[{', '.join(shown)}]"


def _way_out(value: Any, other: Any) -> str:
    if isinstance(value, list) and isinstance(other, list) and sorted(value) == sorted(other):
        return ". Make them in one order: a loop over a set has another one in each process, and one over sorted(...) has not"
    return ""
