"""Parametrizations that a forward registers, as PEFT's LoRA over the experts of a mixture does (``target_parameters``)."""

from __future__ import annotations

import functools

import torch
from torch.nn.utils import parametrize

from ..owners import is_here, owner_of


@functools.cache
def keep_counts_of_writes() -> None:
    """Registering a parametrization counts as no write where it gives a parameter of an engine the memory that it has.

    PyTorch sets the parameter to the result of ``right_inverse``, which is the parameter itself where there is none. No value
    changes, and PyTorch's count of writes in place goes up. A second call does nothing. Other parameters are set as before.
    """
    set_to = getattr(parametrize, "_maybe_set", None)
    if set_to is None:  # of another PyTorch: such a parametrization stays an error
        return

    @functools.wraps(set_to)
    def set_to_other(dest: torch.Tensor, src: torch.Tensor) -> None:
        if owner_of(dest) is None or not is_here(dest) or not dest.is_set_to(src):
            set_to(dest, src)

    parametrize._maybe_set = set_to_other
