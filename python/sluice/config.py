"""Reads and checks a DeepSpeed JSON configuration, with the verdicts of `sluice config check`.

>>> config = sluice.config.load("ds.json")      # or a dict
>>> config.values["zero_optimization.stage"]
3

``Source`` is the type of what is read: the path of a JSON file, the file's text in url-safe base64, or its content as
a dict.
"""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Union

from . import _core
from ._errors import ConfigError, Problem, wrong_type

__all__ = ["Config", "ConfigError", "Problem", "Source", "load", "problems"]

Source = Union[str, "os.PathLike[str]", Mapping[str, Any]]
"""A configuration: the path of a JSON file, the file's text in url-safe base64, or its content as a dict."""

_NAME_OF_DICT = "config"
_SHOWN = 120  # characters of a path or text in a message


def _text_of(content: Mapping[str, Any]) -> str:
    if content.get("steps_per_print") == float("inf"):  # Accelerate's way to say never, which JSON has no number for
        content = {key: value for key, value in content.items() if key != "steps_per_print"}
    return text_of_dict(content, "the configuration", _NAME_OF_DICT)


def text_of_dict(content: Mapping[str, Any], what: str, name: str) -> str:
    """A dict as JSON. Paths become strings. ``what``: the dict in a ValueError; ``name``: in a ConfigError.

    Raises ValueError for values that JSON lacks, and ConfigError for numbers that are not finite.
    """
    problems: list[Problem] = []
    try:
        text = json.dumps(_json_values(content, "", problems))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} cannot be written as JSON: {error}") from error
    except RecursionError:
        raise ValueError(f"{what} cannot be written as JSON: its values are nested too deep") from None
    if problems:
        raise _error_of(problems, name)
    return text


def _json_values(value: Any, key_path: str, problems: list[Problem]) -> Any:
    if isinstance(value, Mapping):
        return {key: _json_values(each, f"{key_path}.{key}" if key_path else str(key), problems) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(each, key_path, problems) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(Problem(0, 0, key_path, f"expected a finite number, found {value}"))
    elif not isinstance(value, (str, int, float, type(None))):
        raise TypeError(f"{key_path} is of class {type(value).__name__}")
    return value


def _without_positions(error: ConfigError) -> ConfigError:
    """The error of a dict: its text has no lines that the caller knows."""
    return _error_of([Problem(0, 0, problem.key_path, problem.message) for problem in error.problems], _NAME_OF_DICT)


def _error_of(found: list[Problem], name: str) -> ConfigError:
    lines = [": ".join(part for part in (name, p.key_path, p.message) if part) for p in found]
    count = f"{len(found)} problem" + ("" if len(found) == 1 else "s")
    return ConfigError("\n".join([*lines, f"{count} in {name}"]), found)


def _path_of(source: str | os.PathLike[str]) -> str:
    if not isinstance(source, (str, os.PathLike)):
        raise wrong_type("the configuration", source, "a path, a dict or a sluice.config.Config")
    path = os.fspath(source)
    if _core.is_base64(path):
        return path
    try:
        os.stat(path)  # FileNotFoundError, before anything is read
    except (FileNotFoundError, NotADirectoryError):
        if path.lstrip().startswith("{"):
            raise _no_source(path) from None
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            raise
        raise _no_source(path) from None
    return path


def _no_source(source: str) -> ValueError:
    """The error of a string that is no path and no text in base64, to be raised."""
    advice = "pass a JSON text as a dict: json.loads(text)" if source.lstrip().startswith("{") else "expected a path, or the text in base64"
    return ValueError(f"the configuration {_shown(source)} is neither a file nor a JSON object in url-safe base64: {advice}")


def _shown(source: str) -> str:
    """For people: the beginning of a long text, in one line."""
    return repr(source) if len(source) <= _SHOWN else f"{source[:_SHOWN]!r}... ({len(source)} characters)"


def content_of(source: Source | Config) -> dict[str, Any]:
    """The keys and values as they were given. Raises ConfigError for a file that is no JSON object, and OSError."""
    given = source.source if isinstance(source, Config) else source
    if isinstance(given, Mapping):
        return dict(given)
    values: dict[str, Any] = json.loads(_core.strict_json(_path_of(given)))
    return values


def section_of(source: Source | Config, name: str) -> dict[str, Any]:
    """A copy of a section as it was given; empty where there is none. Raises as :func:`content_of`."""
    section = content_of(source).get(name)
    return dict(section) if isinstance(section, Mapping) else {}  # the parser refuses other forms


def has_optimizer(source: Source | Config) -> bool:
    """Whether a configuration has an "optimizer" section; ``null`` is none. Raises as :func:`content_of`."""
    return content_of(source).get("optimizer") is not None


class Config:
    """A configuration without mistakes. Made by :func:`load`.

    ``source`` is what was loaded, ``tuned`` the files over it.
    """

    def __init__(self, source: Source, tuned: Iterable[str | os.PathLike[str]] = (), world_size: int = 1) -> None:
        self.source = source
        self.tuned = tuple(_path_of(path) for path in tuned)
        self.world_size = world_size
        if isinstance(source, Mapping):
            if self.tuned:
                raise ValueError("tuned files go over a file; put their keys into the dict instead")
            try:
                self._parsed = _core.parse_train_config(_text_of(source), _NAME_OF_DICT, world_size)
            except ConfigError as error:
                raise _without_positions(error) from None
        else:
            self._parsed = _core.load_train_config(_path_of(source), self.tuned, world_size)

    @property
    def notes(self) -> list[str]:
        """Lines for people: ``mapped: KEY: meaning here``, and ``note: KEY: ...`` for doubtful values."""
        return self._parsed.notes

    @cached_property
    def values(self) -> dict[str, Any]:
        """The values that a run of one rank uses, by key path. A value that the planner chooses is ``"auto"``.

        Runs ``sluice config check --json``, once. Raises :class:`sluice.Error` when the program fails.
        """
        if not isinstance(self.source, Mapping):
            return self._values_of(_path_of(self.source))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(_text_of(self.source))
            file.flush()
            return self._values_of(file.name)

    def _values_of(self, path: str) -> dict[str, Any]:
        from ._errors import Error
        from ._program import PROGRAM

        command = [str(PROGRAM), "config", "check", "--json", path, *self.tuned]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Error(f"`{' '.join(command)}` failed: {result.stderr.strip()}")
        values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])["values"]
        return values

    def __repr__(self) -> str:
        shown = "a dict" if isinstance(self.source, Mapping) else _shown(os.fspath(self.source))
        return f"<sluice.config.Config of {shown}: no mistakes, {len(self.notes)} notes>"


def load(source: Source, *, tuned: Iterable[str | os.PathLike[str]] = (), world_size: int = 1) -> Config:
    """Reads and checks a configuration: a path, the file's text in url-safe base64, or a dict.

    ``tuned``: files with the sections "aio" and "sluice" only, as ``sluice nvme tune`` writes them; their keys
    replace those of ``source``, which is a file. ``world_size``: ranks that share a training batch.

    Raises :class:`ConfigError` with every mistake, FileNotFoundError, and ValueError for a file that cannot be read,
    for ``tuned`` beside a dict, and for a ``world_size`` below 1; TypeError for a ``source`` of another type.
    """
    return Config(source, tuned, world_size)


def problems(source: Source, *, tuned: Iterable[str | os.PathLike[str]] = (), world_size: int = 1) -> list[Problem]:
    """The mistakes of a configuration; an empty list when there are none. Raises as :func:`load` otherwise."""
    try:
        load(source, tuned=tuned, world_size=world_size)
    except ConfigError as error:
        return error.problems
    return []
