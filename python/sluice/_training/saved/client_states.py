"""The client_state of each rank, in the file of rank 0. At ZeRO-3 DeepSpeed keeps each rank's own, below it rank 0's."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Mapping
from typing import Any

import torch

from .. import ranks
from . import client

log = logging.getLogger("sluice")

_KEY = "client_states"  # by rank: packed, or None where it is rank 0's
_PURPOSE = "the client_state of save_checkpoint"


def of_ranks(own: Mapping[str, Any] | None) -> dict[str, Any]:
    """The client_states of all ranks for a checkpoint, on rank 0, which writes them; empty where all are rank 0's.

    Every rank calls it, and packs its own; only those that differ from rank 0's are sent. Raises on all ranks where one cannot
    be pickled.
    """
    if ranks.world_size() == 1:
        return {}
    packed = ranks.together(lambda: client.pack({"client_state": dict(own or {})}))
    sums = ranks.gather(_PURPOSE, hashlib.sha256(packed).digest())
    if all(each == sums[0] for each in sums):
        return {}
    differs = sums[ranks.rank()] != sums[0]
    packets = ranks.to_first(_PURPOSE, packed if differs else b"")
    return {_KEY: [packet or None for packet in packets]} if packets else {}


def own_of(folder: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """This rank's client_state of a checkpoint: rank 0's where none other was saved, or by another number of ranks."""
    first: dict[str, Any] = saved.get("client_state", {})
    states = saved.get(_KEY)
    if states is None:
        return first
    if len(states) != ranks.world_size():
        if ranks.rank() == 0:
            line = "%s has a client_state of each of %d ranks, and %d load it: all of them have rank 0's"
            log.warning(line, folder, len(states), ranks.world_size())
        return first
    own = states[ranks.rank()]
    if own is None:
        return first
    loaded: dict[str, Any] = torch.load(io.BytesIO(own), map_location="cpu", weights_only=False)["client_state"]
    return loaded
