"""The variables of launchers."""

from __future__ import annotations

import os

from .. import _core


def take_variables() -> None:
    """Sets torchrun's variables from those of mpirun, mpiexec or srun, where one of these started several ranks.

    PyTorch and its users then find what torchrun would have set. Variables that are set stay; with ``RANK`` or ``WORLD_SIZE``
    nothing changes. Raises ValueError for variables that cannot be.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        return
    place = _core.launch_environment()
    if place.world_size == 1:
        return
    if not place.master_address:
        raise ValueError(
            f"{place.launcher} started {place.world_size} ranks on several hosts, and MASTER_ADDR is not set: name the host of "
            "rank 0, with mpirun by -x MASTER_ADDR=HOST"
        )
    values = {
        "RANK": place.rank,
        "WORLD_SIZE": place.world_size,
        "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size,
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": place.master_port,
    }
    for name, value in values.items():
        os.environ.setdefault(name, str(value))


def number(name: str, default: str) -> int:
    """A variable of a launcher. Raises ValueError for what is no number."""
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise ValueError(f"{name}={text}: a launcher sets it to a number")
    return int(text)


def local_rank() -> int:
    """The rank on its host; 0 without a launcher."""
    take_variables()
    return number("LOCAL_RANK", "0")
