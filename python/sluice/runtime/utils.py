"""DeepSpeed's ``runtime.utils``, as far as scripts import it."""

from __future__ import annotations

import gc
from typing import Any

from .. import comm
from .._refusals import missing
from ..accelerator import Accelerator, get_accelerator

__all__ = ["see_memory_usage"]

_GIBIBYTE = 1 << 30


def see_memory_usage(message: str, force: bool = False) -> None:
    """Prints, on rank 0, memory of the accelerator and of the host in GiB. Without ``force`` it does nothing, as in DeepSpeed.

    The accelerator's: what is allocated, the most since the call before, and as much with what PyTorch caches. Garbage is
    collected first. Weights and states that Sluice keeps on a GPU are in ``engine.report()``.
    """
    if not force or comm.get_rank() != 0:
        return
    gc.collect()
    device, host = get_accelerator(), Accelerator()
    sizes = {
        "MA": device.memory_allocated(),
        "Max_MA": device.max_memory_allocated(),
        "CA": device.memory_reserved(),
        "Max_CA": device.max_memory_reserved(),
    }
    print(message)
    print("  ".join(f"{name} {size / _GIBIBYTE:.2f} GB" for name, size in sizes.items()))
    used = host.total_memory() - host.available_memory()
    print(f"CPU Virtual Memory:  used = {used / _GIBIBYTE:.2f} GB, percent = {100 * used / host.total_memory():.1f}%", flush=True)
    device.reset_peak_memory_stats()


def __getattr__(name: str) -> Any:
    raise missing(f"module {__name__!r}", name)
