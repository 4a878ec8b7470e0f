"""A module by the name of deepspeed, for this process only: for scripts and libraries that look for that package.

``python -m sluice.as_deepspeed script.py [arguments]`` runs a script that has it, ``-m`` a module. ``import
sluice.as_deepspeed`` before other imports does it inside a script. From then on ``import deepspeed`` gives Sluice's parts
by DeepSpeed's names, and ``importlib.metadata`` a version: Transformers, Accelerate and PEFT then use Sluice where
``TrainingArguments(deepspeed="ds.json")`` asks for DeepSpeed. Nothing is installed, and an installed deepspeed is not read.

Variables of the environment that DeepSpeed's launcher sets for one process (``RANK``, ``LOCAL_RANK``, ``WORLD_SIZE``,
``MASTER_ADDR``, ``MASTER_PORT``) are set where they are missing, the port to one that is free. Raises ImportError where a deepspeed is imported already.
A program that starts torchrun or another launcher gets a warning: the processes there are others.
A name that Sluice lacks raises AttributeError, a module ModuleNotFoundError, and ``from deepspeed import NAME`` ImportError.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import sluice

from .._environment.launcher import take_variables
from .._refusals import kind_of_missing, reason_of
from . import _launchers

__all__ = ["PROVIDED_VERSION"]

PROVIDED_VERSION = "0.19.8+sluice"
"""The version that ``deepspeed`` has here: that of DeepSpeed whose interface it follows."""

_NAME = "deepspeed"
_ENVIRONMENT = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def _missing(name: str, kind: str = "") -> str:
    reason = next(filter(None, map(reason_of, name.split(".")[1:])), "")
    why = f": {reason}" if reason else ""
    return f"Sluice, which provides {_NAME} in this process, has no {kind}{name}{why} (docs/from_deepspeed.md)"


def _of_sluice(name: str) -> Any:
    return getattr(sluice, name)


class _Provided(ModuleType):
    """The module `deepspeed`: names of `sluice`."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            try:
                return _of_sluice(name)
            except AttributeError:
                pass
        raise kind_of_missing(name)(_missing(f"{_NAME}.{name}"))

    def __dir__(self) -> Iterable[str]:
        return sorted({*vars(self), *sluice.__all__})


def _counterpart(fullname: str) -> str:
    return "sluice" + fullname[len(_NAME) :]


class _Loader(importlib.abc.Loader):
    """Gives Sluice's own module under DeepSpeed's name, so that classes and values are one."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if spec.name == _NAME:
            made = _Provided(_NAME, __doc__)
            made.__version__ = PROVIDED_VERSION  # type: ignore[attr-defined]
            return made
        module = importlib.import_module(_counterpart(spec.name))
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != _NAME:  # it ran under its own name, whose specification the import system has replaced
            module.__spec__ = self._own


class _Metadata(importlib.metadata.Distribution):
    """Metadata of the package deepspeed for `importlib.metadata`."""

    def read_text(self, filename: str) -> str | None:
        if filename == "METADATA":
            return (
                f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {PROVIDED_VERSION}\nAuthor: Sluice\n"
                "Summary: Sluice, by the name of DeepSpeed, in this process only\n"
            )
        return _NAME + "\n" if filename == "top_level.txt" else None

    def locate_file(self, path: Any) -> Any:
        raise FileNotFoundError(2, "no file belongs to the deepspeed that Sluice provides", str(path))


class _Finder(importlib.metadata.DistributionFinder):
    """Finds `deepspeed`, its submodules and its metadata before any other finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == _NAME:
            spec = importlib.machinery.ModuleSpec(_NAME, _Loader(), origin=sluice.__file__, is_package=True)
            spec.has_location = True  # scripts print `deepspeed.__file__`
            return spec
        if not fullname.startswith(_NAME + "."):
            return None
        there = None
        if not any(part.startswith("_") for part in fullname.split(".")):
            there = importlib.util.find_spec(_counterpart(fullname))
        if there is None:
            raise ModuleNotFoundError(_missing(fullname, "module "), name=fullname)
        is_package = there.submodule_search_locations is not None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), origin=there.origin, is_package=is_package)

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = importlib.metadata.DistributionFinder.Context()
    ) -> Iterable[importlib.metadata.Distribution]:
        return [_Metadata()] if context.name in (None, _NAME) else []


def _free_port() -> str:
    """Two runs of one process each may share a host."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def _provide() -> None:
    there = sys.modules.get(_NAME)
    if isinstance(there, _Provided):
        return
    if there is not None:
        raise ImportError(
            f"{_NAME} is imported already, from {getattr(there, '__file__', 'elsewhere')}: import sluice.as_deepspeed first, or "
            "run the script with python -m sluice.as_deepspeed"
        )
    sys.meta_path.insert(0, _Finder())
    importlib.invalidate_caches()
    take_variables()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", _free_port() if os.environ["WORLD_SIZE"] == "1" else "29500")
    _launchers.watch()


_provide()
