#!/usr/bin/env python3
"""Runs one Trainer script under DeepSpeed and under Sluice, and compares rates, losses and files.

bench/peers/trainer_peer.py --peer DEEPSPEED_PYTHON --python SLUICE_PYTHON --drive DIRECTORY [--steps 50] [--out FILE]

The interpreters are those of two environments: one with deepspeed, transformers and accelerate, one with sluice,
transformers and accelerate (.cache/python/hf, which scripts/test_python.sh makes). The script is
tests/python/with_hf/trainer_script.py: a Llama of four layers of 256, every "auto" left to the Trainer. DeepSpeed holds
states in host memory (--peer-nvme: on the drive, too); Sluice holds them on the drive. Exits with 1 where a bar of
BARS is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests" / "python" / "with_hf"
sys.path.insert(0, str(TESTS))

from hf_runs import column, differences, write_config, zero_config  # noqa: E402

BARS = {"learning_rate": 1e-12, "loss": 1e-5, "eval_loss": 1e-5, "grad_norm": 1e-4}
MEMORY_BAR = 0.5  # our largest resident set, of DeepSpeed's, both less what the imports took
# In each checkpoint of DeepSpeed's: scripts that make weights of its files. Ours are model.safetensors at once.
NOT_NEEDED = ("zero_to_fp32.py", "zero_to_torch.py")
# DeepSpeed is imported before the script, as `-m sluice.as_deepspeed` does: its libraries are not the run's memory.
WITH_DEEPSPEED = "import deepspeed, runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}


def run(command: list[str], output: Path, ds_json: Path, arguments: str, **variables: str) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive", **variables}
    log = output.with_suffix(".log")
    with log.open("w") as file:
        whole = [*command, str(TESTS / "trainer_script.py"), str(output), str(ds_json), arguments]
        ended = subprocess.run(whole, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=1200, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(whole)} failed: see {log}")


def files_of(output: Path) -> set[str]:
    """Files that people read: what is inside global_step* is the engine's own."""
    paths = (path.relative_to(output) for path in output.rglob("*") if path.is_file())
    return {str(path) for path in paths if not any(part.startswith("global_step") for part in path.parts)}


def memory_of(output: Path) -> dict[str, int]:
    """Bytes of the process at most, and above what it had after its imports."""
    log = json.loads((output / "log.json").read_text())
    return {"peak": log["peak_bytes"], "above_imports": log["peak_bytes"] - log["imported_bytes"]}


def compare(mine: Path, theirs: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in BARS:
        a, b = column(mine, key), column(theirs, key)
        if key == "learning_rate":
            found[key] = max(abs(x - y) for x, y in zip(a, b, strict=True))
        else:
            found[key] = differences(a, b)
        found[f"{key}_count"] = len(a)
    found["first_loss_is_equal"] = column(mine, "loss")[0] == column(theirs, "loss")[0]
    found["only_under_sluice"] = sorted(files_of(mine) - files_of(theirs))
    missing = sorted(files_of(theirs) - files_of(mine))
    found["only_under_deepspeed"] = [name for name in missing if Path(name).name not in NOT_NEEDED]
    memory = {"sluice": memory_of(mine), "deepspeed": memory_of(theirs)}
    found["bytes"] = memory
    found["memory_ratio"] = memory["sluice"]["above_imports"] / memory["deepspeed"]["above_imports"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", required=True, help="Python of an environment with deepspeed")
    parser.add_argument("--python", required=True, help="Python of an environment with sluice")
    parser.add_argument("--drive", required=True, type=Path, help="an empty directory for states and outputs")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--peer-nvme", action="store_true", help="DeepSpeed's states on the drive, too")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    folders = {name: arguments.drive / name for name in ("sluice", "deepspeed")}
    for folder in folders.values():
        (folder / "drive").mkdir(parents=True)
    keys = json.dumps({"max_steps": arguments.steps, "warmup_steps": arguments.steps // 10, "save_steps": 20})
    mine, theirs = folders["sluice"], folders["deepspeed"]
    operators = str(Path(arguments.peer).absolute().parents[1] / "torch_extensions")  # of bench/peers/setup.sh
    theirs_on_drive = theirs / "drive" if arguments.peer_nvme else None
    run([arguments.peer, "-c", WITH_DEEPSPEED], theirs / "output", write_config(theirs, zero_config(theirs_on_drive)), keys,
        DS_ACCELERATOR="cpu", PYTHONPATH=str(TESTS), TORCH_EXTENSIONS_DIR=operators, **LAUNCHED)
    run([arguments.python, "-m", "sluice.as_deepspeed"], mine / "output", write_config(mine, zero_config(mine / "drive")), keys)
    found = compare(mine / "output", theirs / "output")
    print(json.dumps(found, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    missed = [key for key, bar in BARS.items() if found[key] > bar]
    for key in missed:
        print(f"{key}: {found[key]} is more than {BARS[key]}", file=sys.stderr)
    if found["memory_ratio"] > MEMORY_BAR:
        missed.append("memory_ratio")
        print(f"our memory is {found['memory_ratio']:.2f} of DeepSpeed's, more than {MEMORY_BAR}", file=sys.stderr)
    if found["only_under_deepspeed"]:
        missed.append("only_under_deepspeed")
        print(f"files only under DeepSpeed: {', '.join(found['only_under_deepspeed'])}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
