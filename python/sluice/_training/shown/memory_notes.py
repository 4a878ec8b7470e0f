"""A note in PyTorch's error for a device without memory: the part that Sluice holds, which PyTorch does not know of."""

from __future__ import annotations

import json

import torch

from ..._core import format_bytes
from ..watched_loop import WatchedLoop

__all__ = ["note_held_memory"]


def note_held_memory(error: BaseException, loop: WatchedLoop, device: torch.device) -> None:
    """Python 3.10 has no notes."""
    if isinstance(error, torch.OutOfMemoryError) and hasattr(error, "add_note"):
        held = json.loads(loop.plan_json)["planned_bytes"]["device"]
        error.add_note(f'Sluice holds {format_bytes(held)} of {device}; "device_bytes" in "sluice" limits it')
