"""DeepSpeed's ``runtime.zero``: the names of ``sluice.zero``, and those of parameters under ZeRO-3."""

from __future__ import annotations

import importlib
from typing import Any

from ..._refusals import missing

__all__ = ["GatheredParameters", "Init", "parameter_offload", "partition_parameters", "register_external_parameter"]


def __getattr__(name: str) -> Any:
    if name in ("parameter_offload", "partition_parameters"):
        return importlib.import_module(f"{__name__}.{name}")
    if name in __all__:
        return getattr(importlib.import_module("sluice.zero"), name)
    raise missing(f"module {__name__!r}", name)


def __dir__() -> list[str]:
    return sorted(__all__)
