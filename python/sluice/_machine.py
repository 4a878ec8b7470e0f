"""Facts of a machine, which plans follow from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import _core
from ._errors import wrong_type
from .config import Config, Source, load

_MACHINE_KEYS = ("total_memory_bytes", "available_memory_bytes", "memlock_bytes", "address_space_bytes", "cores")


def machine_facts(config: Source | Config) -> dict[str, Any]:
    """The facts of this machine that a plan of this configuration follows from.

    Keys: ``total_memory_bytes``, ``available_memory_bytes`` (what this process can still get), ``memlock_bytes``
    (what it may lock), ``address_space_bytes``, ``cores``, ``free_disk_bytes`` (by directory that the configuration
    names), and ``gpu``: None, or a dict of ``index``, ``name``, ``total_bytes``, ``free_bytes``.

    Raises as :func:`sluice.config.load`, and ValueError when the configuration names a GPU that is missing, or
    leaves the device open where the NVIDIA driver is there and fails.
    """
    loaded = config if isinstance(config, Config) else load(config)
    return _facts_of(_core.probe_machine(loaded._parsed))


def _facts_of(machine: _core.MachineFacts) -> dict[str, Any]:
    gpu = machine.gpu
    facts = {name: getattr(machine, name) for name in _MACHINE_KEYS}
    facts["free_disk_bytes"] = dict(machine.free_disk_bytes)
    facts["gpu"] = gpu and {name: getattr(gpu, name) for name in ("index", "name", "total_bytes", "free_bytes")}
    return facts


def change_facts(machine: _core.MachineFacts, facts: Mapping[str, Any]) -> None:
    """Replaces facts of a machine, by the keys of :func:`machine_facts`."""
    unknown = sorted(set(facts) - {*_MACHINE_KEYS, "free_disk_bytes", "gpu"})
    if unknown:
        known = ", ".join([*_MACHINE_KEYS, "free_disk_bytes", "gpu"])
        raise ValueError(f"machine has no fact {unknown[0]!r}; there are: {known}")
    for name in _MACHINE_KEYS:
        if name in facts:
            try:
                setattr(machine, name, facts[name])
            except TypeError:
                if isinstance(facts[name], int):
                    limit = "from 0 to 2**31 - 1" if name == "cores" else "from 0 to 2**64 - 1"
                    raise ValueError(f"machine[{name!r}] is {facts[name]}: expected a number {limit}") from None
                raise wrong_type(f"machine[{name!r}]", facts[name], "a whole number") from None
    if machine.cores < 1:
        raise ValueError(f"machine['cores'] is {machine.cores}: expected at least 1")
    if machine.available_memory_bytes > machine.total_memory_bytes:
        raise ValueError(
            f"machine['available_memory_bytes'] is {machine.available_memory_bytes}, more than "
            f"total_memory_bytes, {machine.total_memory_bytes}"
        )
    if "available_memory_bytes" in facts:
        machine.clear_group_memory()  # a limit of this process, not of the machine described
    if "free_disk_bytes" in facts:
        machine.free_disk_bytes = [(os.fspath(path), count) for path, count in facts["free_disk_bytes"].items()]
    if "gpu" in facts:
        gpu = facts["gpu"]
        machine.gpu = None if gpu is None else _gpu_of(gpu)


def _gpu_of(facts: Mapping[str, Any]) -> _core.GpuFacts:
    keys = ("name", "total_bytes", "free_bytes")
    missing = [key for key in keys if key not in facts]
    unknown = sorted(set(facts) - {"index", *keys})
    if missing or unknown:
        found = f"{missing[0]!r} is missing" if missing else f"there is no {unknown[0]!r}"
        raise ValueError(f"machine['gpu']: {found}; it has index (default 0), {', '.join(keys)}")
    if facts["free_bytes"] > facts["total_bytes"]:
        raise ValueError(
            f"machine['gpu']: free_bytes is {facts['free_bytes']}, more than total_bytes, {facts['total_bytes']}"
        )
    return _core.GpuFacts(**{"index": 0, **facts})
