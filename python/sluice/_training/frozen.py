"""The model of an engine without an optimizer, which only computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from .owners import check_free


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Freezes the parameters. After an error inside, those that trained train again, so that another try finds them.

    Raises ValueError for the model of another engine, which may train it.
    """
    check_free(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    try:
        yield
    except BaseException:
        for parameter in trained:
            parameter.requires_grad_(True)
        raise
