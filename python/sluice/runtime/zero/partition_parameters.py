"""Names of DeepSpeed's ``partition_parameters`` that scripts and Transformers use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from ..._refusals import missing
from ...accelerator import get_accelerator

__all__ = ["GatheredParameters", "Init", "ZeroParamStatus", "get_accelerator", "zero_wrapper_for_fp_tensor_constructor"]

_orig_torch_arange = torch.arange


class ZeroParamStatus(Enum):
    """Where the values of a parameter are: ``parameter.ds_status``."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


def zero_wrapper_for_fp_tensor_constructor(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    """The function itself: ``zero.Init`` leaves PyTorch's constructors as they are.

    Transformers replaces this name while it builds a model, so that buffers of positions keep their data type.
    """
    return function


def __getattr__(name: str) -> Any:
    if name in ("GatheredParameters", "Init"):
        return getattr(importlib.import_module("sluice.zero"), name)
    raise missing(f"module {__name__!r}", name)
