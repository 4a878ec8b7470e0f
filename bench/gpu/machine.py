"""The machine: its facts, where LibTorch is on it, and the bundle of scripts/gpu_bundle.sh."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

from paired import GIB, MIB, machine, output_of

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SMI = ("nvidia-smi", "--format=csv,noheader,nounits")


def torch_folder() -> Path | None:
    """Folder of this Python's torch. Does not load torch, which would take seconds."""
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def environment_for(binaries: Path) -> dict[str, str]:
    """Environment in which programs find the libraries of the bundle, LibTorch and CUDA."""
    folders = [binaries.parent / "lib"]
    if torch := torch_folder():
        folders += [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    old = os.environ.get("LD_LIBRARY_PATH")
    path = ":".join([*map(str, folders), *([old] if old else [])])
    return {**os.environ, "LD_LIBRARY_PATH": path}


def gpu_query(fields: str) -> list[str] | None:
    """Values of `fields` for the first GPU; None without a GPU."""
    try:
        line = [SMI[0], f"--query-gpu={fields}", *SMI[1:]]
        done = subprocess.run(line, capture_output=True, text=True, timeout=30)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0 or not done.stdout.strip():
        return None
    return [value.strip() for value in done.stdout.splitlines()[0].split(",")]


def gpu_used_bytes() -> int | None:
    used = gpu_query("memory.used")
    return int(used[0]) * MIB if used and used[0].isdigit() else None


def available_bytes() -> int:
    """Host memory that a program could still have."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def torch_facts() -> dict[str, str]:
    if torch_folder() is None:
        return {"torch": "none"}
    version = importlib.metadata.version("torch")
    return {"torch": version, "cuda": cuda_version()}


def cuda_version() -> str:
    """Version of the runtime in LibTorch's wheel."""
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def facts_of(drive: Path, bundle: dict | None) -> dict:
    gpu = gpu_query("name,driver_version,memory.total")
    described = output_of("git", "-C", REPOSITORY, "describe", "--always", "--dirty", "--abbrev=12")
    commit = bundle["commit"][:12] + "-dirty" * (not bundle["clean"]) if bundle else described
    shown = machine(drive)
    return {
        "device": gpu[0] if gpu else "no GPU",
        "driver": gpu[1] if gpu else "none",
        "device_memory_MiB": int(gpu[2]) if gpu and gpu[2].isdigit() else 0,
        **torch_facts(),
        **shown,
        "disk_free_GiB": round(shutil.disk_usage(drive).free / GIB, 1),
        "memory_available_GiB": round(available_bytes() / GIB, 1),
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }


def facts_text(facts: dict) -> str:
    """One line, for the log and under a table."""
    drive = facts["drive"].strip() or "unknown"
    return (
        f"{facts['device']} ({facts['device_memory_MiB']:,} MiB, driver {facts['driver']}), "
        f"CUDA {facts.get('cuda', 'none')}, torch {facts['torch']}, {facts['cpu']}, "
        f"cores: {facts['cpus']}, {facts['memory_GiB']} GiB of memory "
        f"({facts['memory_available_GiB']} available), Linux {facts['kernel']}, "
        f"{facts['file_system']}, drive: {drive}, {facts['disk_free_GiB']} GiB free"
    )


def read_bundle(folder: Path) -> dict | None:
    """Its manifest. Exits where a file is not what it was; None where there is no bundle."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return None
    bundle = json.loads(manifest.read_text())
    for name, known in bundle["files"].items():
        path = folder / name
        if not path.is_file() or sha256_of(path) != known["sha256"]:
            raise SystemExit(f"{path}: not the file that the bundle was made with")
        if not os.access(path, os.X_OK):  # a copy may have lost it
            path.chmod(path.stat().st_mode | 0o111)
    return bundle


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
