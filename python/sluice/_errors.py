"""The exceptions of Sluice that Python has no class for. The extensions raise them by name."""

from __future__ import annotations

from typing import Any, NamedTuple


class Error(RuntimeError):
    """A failure of Sluice. The message says what failed, where, how much was involved and what to do.

    A caller's mistake is a ValueError, a failed file an OSError, and missing memory a MemoryError instead.
    """


class DoesNotFit(Error):
    """A plan does not fit its budgets. The message is the table, with changes that would make it fit."""


class StorageError(Error):
    """Stored data is unusable: damaged, locked by another run, or of another model."""


class Problem(NamedTuple):
    """One mistake of a configuration.

    ``line`` and ``column`` count from 1 and point at the key; both are 0 for a configuration given as a dict.
    ``key_path`` is ``"zero_optimization.stage"``, for example; it is empty when the mistake is in no key.
    """

    line: int
    column: int
    key_path: str
    message: str


class ConfigError(ValueError):
    """A configuration with mistakes: all of them, or the first 100, in ``problems``, sorted by position."""

    def __init__(self, message: str, problems: list[Problem]) -> None:
        super().__init__(message)
        self.problems = problems

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, list[Problem]]]:
        return type(self), (str(self), self.problems)


def wrong_type(name: str, value: Any, expected: str) -> TypeError:
    """The error of an argument of another type, to be raised. ``expected``: what it should be."""
    kind = f"the class {value.__name__} itself" if isinstance(value, type) else f"of class {type(value).__name__}"
    return TypeError(f"{name} is {'None' if value is None else kind}: expected {expected}")


Error.__module__ = DoesNotFit.__module__ = StorageError.__module__ = "sluice"
Problem.__module__ = ConfigError.__module__ = "sluice.config"
