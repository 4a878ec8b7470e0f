"""Sluice from Python: PyTorch models over memory tiers, drives, host optimizers, configuration and plans.

- ``sluice.initialize(model=model, config="ds.json")``: an engine with DeepSpeed's methods that trains the model.
- ``sluice.offload(model, "ds.json")``: the same for a loop of one's own; returns the optimizer.
- ``sluice.plan(model, config)``: where every byte of a run would live.
- ``sluice.config``: reads and checks a DeepSpeed JSON file.
- ``sluice.ops.aio.aio_handle``: moves tensors to and from files at the drive's speed.
- ``sluice.ops.adam``, ``adagrad``, ``lion``, ``sgd``: optimizers on host memory.
- ``sluice.as_deepspeed``: a module by DeepSpeed's name, for the Trainer, Accelerate and PEFT.
- ``sluice.comm``, ``accelerator``, ``checkpointing``, ``runtime``, ``checkpoint``, ``utils``, ``zero``: DeepSpeed's parts.

PyTorch is imported when something that needs it is used: the engine, the optimizers.

The program is ``sluice`` on the command line, or ``python -m sluice``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import config, ops
from ._core import version as __version__
from ._errors import DoesNotFit, Error, StorageError
from ._machine import machine_facts
from ._environment.openmp import set_waits
from ._plan import Plan, plan
from ._refusals import missing

if TYPE_CHECKING:
    from ._initialize import add_config_arguments, initialize
    from ._offload import OffloadedOptimizer, offload
    from ._training.optimizer import SluiceOptimizer
    from .accelerator import get_accelerator
    from .comm import init_distributed
    from .engine import SluiceEngine
    from .runtime.base_optimizer import DeepSpeedOptimizer
    from .runtime.config import DeepSpeedConfigError
    from .runtime.engine import DeepSpeedEngine
    from .utils import log_dist

__all__ = [
    "DeepSpeedConfigError",
    "DeepSpeedEngine",
    "DeepSpeedOptimizer",
    "DoesNotFit",
    "Error",
    "OffloadedOptimizer",
    "Plan",
    "SluiceEngine",
    "SluiceOptimizer",
    "StorageError",
    "__version__",
    "accelerator",
    "add_config_arguments",
    "checkpoint",
    "checkpointing",
    "comm",
    "config",
    "get_accelerator",
    "init_distributed",
    "initialize",
    "log_dist",
    "machine_facts",
    "offload",
    "ops",
    "plan",
    "runtime",
    "utils",
    "zero",
]

_LATER = {
    "DeepSpeedConfigError": ".runtime.config",
    "DeepSpeedEngine": ".runtime.engine",
    "DeepSpeedOptimizer": ".runtime.base_optimizer",
    "OffloadedOptimizer": "._offload",
    "SluiceEngine": ".engine",
    "SluiceOptimizer": "._training.optimizer",
    "add_config_arguments": "._initialize",
    "get_accelerator": ".accelerator",
    "init_distributed": ".comm",
    "initialize": "._initialize",
    "log_dist": ".utils",
    "offload": "._offload",
}
_MODULES = {
    "accelerator": ".accelerator",
    "checkpoint": ".checkpoint",
    "checkpointing": ".runtime.activation_checkpointing.checkpointing",
    "comm": ".comm",
    "runtime": ".runtime",
    "utils": ".utils",
    "zero": ".zero",
}

set_waits()


def __getattr__(name: str) -> Any:
    """Imports a name that needs PyTorch at its first use."""
    if name in _MODULES:
        return importlib.import_module(_MODULES[name], __name__)
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name], __name__), name)
    raise missing(f"module {__name__!r}", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
