"""The extension `_engine`, which works with the one PyTorch that it was built for."""

from __future__ import annotations

import importlib
from typing import Any

from .._errors import Error


def engine_module() -> Any:
    """The extension. Raises :class:`sluice.Error` in one line where it is missing, or PyTorch is another version."""
    try:
        built_for: str = importlib.import_module("sluice._engine_torch").BUILT_FOR
    except ModuleNotFoundError:
        raise Error(
            "this wheel of sluice was built without PyTorch, so it trains no modules: build it where PyTorch 2.11.0 is "
            "installed (docs/python.md)"
        ) from None
    import torch

    if torch.__version__.split("+")[0] != built_for:
        raise Error(
            f"sluice was built for PyTorch {built_for}, and this is PyTorch {torch.__version__}: install torch=={built_for}, "
            "or build sluice beside this one"
        )
    return importlib.import_module("sluice._engine")
