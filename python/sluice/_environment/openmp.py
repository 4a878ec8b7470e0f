"""How threads of OpenMP wait: libgomp, which PyTorch loads, reads the environment once.

Its threads spin for milliseconds by default, on the cores that updates, copies and I/O need. Without a spin they sleep in
the kernel after each small operator. So they spin for some 25 us, about as long as falling asleep and waking up take, and
then sleep. The program does so too (engine/cli/src/train/train_library_loader.cpp).
"""

from __future__ import annotations

import os
import sys

_came_late = "torch" in sys.modules
_chosen = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ


def set_waits() -> None:
    """Sets OMP_WAIT_POLICY and GOMP_SPINCOUNT for a PyTorch that is imported later; what the user set stays."""
    if _came_late or "OMP_WAIT_POLICY" in os.environ:
        return
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def spinning_line() -> str | None:
    """For the choices of a plan: that PyTorch's threads spin, as it was imported first. None where they do not, or should."""
    if not _came_late or _chosen:
        return None
    return (
        "waits of OpenMP: PyTorch was imported before sluice, so its threads spin on cores that updates, copies and I/O need; "
        "import sluice first"
    )
