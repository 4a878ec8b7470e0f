"""A note in PyTorch's error of a backward that reaches weights which are not there: its own text names a size of 0 alone."""

from __future__ import annotations

import re

__all__ = ["note_tensor_aside"]

_SIZE_OF_ZERO = re.compile(r"\(0\)|\[0\]")


def note_tensor_aside(error: BaseException) -> None:
    """Python 3.10 has no notes."""
    if isinstance(error, RuntimeError) and _SIZE_OF_ZERO.search(str(error)) and hasattr(error, "add_note"):
        error.add_note(
            "a size of 0 is that of a weight whose unit is not entered: a tensor has left its unit other than as an output, by an "
            "attribute, a hook or an object outside. Return it from the unit's forward, and give it to the module that uses it"
        )
