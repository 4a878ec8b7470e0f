"""Submodules that are imported at their first use, because what they import is large."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType

from ._refusals import missing


def submodule(package: str, names: Sequence[str], name: str) -> ModuleType:
    """For a package's ``__getattr__``: its submodule, if ``names`` has it. Raises AttributeError otherwise."""
    if name in names:
        return importlib.import_module(f"{package}.{name}")
    raise missing(f"module {package!r}", name)
