"""Sluice from Python: drives, host optimizers, configuration and plans.

Nothing here imports PyTorch, except the optimizers, when they are used:

- ``sluice.plan(model, config)``: where every byte of a run would live.
- ``sluice.config``: reads and checks a DeepSpeed JSON file.
- ``sluice.ops.aio.aio_handle``: moves tensors to and from files at the drive's speed.
- ``sluice.ops.adam``, ``adagrad``, ``lion``, ``sgd``: optimizers on host memory.

The program is ``sluice`` on the command line, or ``python -m sluice``.
"""

from __future__ import annotations

from . import config, ops
from ._core import version as __version__
from ._errors import DoesNotFit, Error, StorageError
from ._plan import Plan, machine_facts, plan

__all__ = ["DoesNotFit", "Error", "Plan", "StorageError", "__version__", "config", "machine_facts", "ops", "plan"]
