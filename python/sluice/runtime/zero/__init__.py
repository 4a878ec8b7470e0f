"""DeepSpeed's ``runtime.zero``: the names of ``sluice.zero``, and those of parameters under ZeRO-3."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["GatheredParameters", "Init", "partition_parameters", "register_external_parameter"]


def __getattr__(name: str) -> Any:
    if name == "partition_parameters":
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module("sluice.zero"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
