"""The errors of `sluice data`, with the exit codes of docs/cli.md."""

from __future__ import annotations

USAGE, STORAGE, OTHER = 2, 4, 1


class Failure(Exception):
    """Ends the command. The message says where, what and what to do, in one line."""

    def __init__(self, message: str, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def of_system(error: OSError, path: object) -> Failure:
    """A file that cannot be read or written."""
    return Failure(f"{path}: {error.strerror or error}", STORAGE)
