"""DeepSpeed's ``utils.nvtx``: functions as ranges of a profiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from ..accelerator import get_accelerator

__all__ = ["instrument_w_nvtx"]

Function = TypeVar("Function", bound=Callable[..., Any])


def instrument_w_nvtx(func: Function) -> Function:
    """The function, each of whose calls is a range of its name: of NVTX on a GPU, of torch.profiler on the CPU."""

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # which cannot trace ranges
            return func(*args, **kwargs)
        accelerator = get_accelerator()
        accelerator.range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            accelerator.range_pop()

    return cast(Function, call)
