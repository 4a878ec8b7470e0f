"""Start of the comparisons with DeepSpeed: the folders, and the environment of bench/peers/setup.sh.

To be imported first: the modules of bench/ are found, and DeepSpeed finds its operators, only then.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

# As setup.sh built the operators; read when deepspeed is imported.
os.environ.update(DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="")
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
try:
    import deepspeed
    import torch
except ImportError as error:
    script = Path(sys.argv[0]).name
    sys.exit(f"{script}: {error}; run bench/peers/setup.sh, then bench/peers/.venv/bin/python")


def missing_operators(*names: str) -> list[str]:
    """Those that setup.sh has not built: DeepSpeed would begin to build them when they are used."""
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    return [name for name in names if not (folder / name / f"{name}.so").exists()]


def versions() -> dict[str, str]:
    return {
        "deepspeed": deepspeed.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
