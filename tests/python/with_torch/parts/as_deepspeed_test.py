"""The module deepspeed that sluice.as_deepspeed provides for a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PRELUDE = "import sluice.as_deepspeed\n"


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    return subprocess.run(
        [sys.executable, *arguments], env={**environment, **variables}, capture_output=True, text=True, timeout=180, check=False
    )


def output_of(code: str, **variables: str) -> list[str]:
    result = python("-c", PRELUDE + code, **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_without_it_there_is_no_deepspeed() -> None:
    result = python("-c", "import importlib.util, sluice; print(importlib.util.find_spec('deepspeed'))")
    assert result.stdout == "None\n"


def test_libraries_find_a_package_with_a_version_and_an_author() -> None:
    lines = output_of(
        "import importlib.metadata as m, importlib.util as u, sys\n"
        "print(u.find_spec('deepspeed').name, m.version('deepspeed'), m.metadata('deepspeed')['Author'])\n"
        "print(m.packages_distributions()['deepspeed'], 'torch' in sys.modules)\n"
        "import deepspeed; print(deepspeed.__version__)\n"
    )
    assert lines == ["deepspeed 0.19.8+sluice Sluice", "['deepspeed'] False", "0.19.8+sluice"]


def test_classes_and_modules_are_those_of_sluice() -> None:
    lines = output_of(
        "import deepspeed, sluice\n"
        "from deepspeed.ops.adam import DeepSpeedCPUAdam\n"
        "from deepspeed.runtime.engine import DeepSpeedEngine\n"
        "import deepspeed.runtime.lr_schedules, sys\n"
        "import sluice.ops.adam, sluice.engine\n"
        "print(DeepSpeedCPUAdam is sluice.ops.adam.DeepSpeedCPUAdam, deepspeed.DeepSpeedEngine is DeepSpeedEngine)\n"
        "print(DeepSpeedEngine is sluice.engine.SluiceEngine, sys.modules['deepspeed.ops'] is sluice.ops)\n"
        "print(sluice.ops.adam.__spec__.name, sluice.ops.adam.__name__, deepspeed.runtime.lr_schedules.__name__)\n"
    )
    assert lines == ["True True", "True True", "sluice.ops.adam sluice.ops.adam sluice.runtime.lr_schedules"]


def test_it_has_a_file() -> None:
    assert output_of("import deepspeed, sluice; print(deepspeed.__file__ == sluice.__file__)") == ["True"]


# Names that Transformers 5.23, Accelerate 1.15 and PEFT 0.21 import or touch for one rank.
IMPORTS = """
import deepspeed
from deepspeed import DeepSpeedEngine, comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.ops.lion import DeepSpeedCPULion
from deepspeed.runtime.zero import partition_parameters as pp
from deepspeed.utils import groups, logger, set_z3_leaf_modules
deepspeed.initialize, deepspeed.init_distributed, deepspeed.add_config_arguments, deepspeed.checkpointing.checkpoint
deepspeed.zero.Init, deepspeed.zero.GatheredParameters, deepspeed.zero.register_external_parameter
deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES
pp.zero_wrapper_for_fp_tensor_constructor, pp._orig_torch_arange, pp.get_accelerator, pp.ZeroParamStatus.NOT_AVAILABLE
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad, safe_get_full_optimizer_state
from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_grad, safe_set_full_optimizer_state
assert dist.is_initialized() is False and dist.get_world_size() == 1
dist.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
import torch
assert dist.is_initialized() and torch.distributed.get_rank() == deepspeed.comm.get_rank() == 0
total = torch.ones(2); dist.all_reduce(total); dist.barrier()
assert total.tolist() == [1, 1]
assert get_accelerator().current_device_name() == get_accelerator().device_name(0) == "cpu"
assert get_accelerator().memory_allocated() > 1 << 20
print("all there")
"""


def test_the_names_that_libraries_use_are_there() -> None:
    assert output_of(IMPORTS) == ["all there"]


NONE = "Sluice, which provides deepspeed in this process, has no"


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("import deepspeed.inference.engine", f"ModuleNotFoundError: {NONE} module deepspeed.inference"),
        ("from deepspeed.pipe import PipelineModule", f"ModuleNotFoundError: {NONE} module deepspeed.pipe"),
        ("import deepspeed; deepspeed.init_inference", f"AttributeError: {NONE} deepspeed.init_inference"),
        ("import deepspeed.ops._host_optimizer", f"ModuleNotFoundError: {NONE} module"),
        ("from deepspeed.ops.adam import FusedLamb", "ImportError: cannot import name 'FusedLamb' from 'sluice.ops.adam'"),
        ("from deepspeed.accelerator import get_accelerator as g; g().Tensor", "AttributeError: the accelerator of Sluice has no attribute 'Tensor'"),
    ],
)
def test_a_part_that_is_missing_is_named(statement: str, error: str) -> None:
    result = python("-c", PRELUDE + statement)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith(error)


def test_another_deepspeed_that_is_imported_already_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("")
    script = "import sys; sys.path.insert(0, '.')\nimport deepspeed\nimport sluice.as_deepspeed"
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert result.stderr.splitlines()[-1].startswith("ImportError: deepspeed is imported already, from ")
    # One that is only there is not read.
    script = "import sys; sys.path.insert(0, '.')\nimport sluice.as_deepspeed, deepspeed; print(deepspeed.__version__)"
    result = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert result.stdout == "0.19.8+sluice\n"


def test_the_environment_is_that_of_one_process() -> None:
    show = "import os; print(*[os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT')])"
    *place, port = output_of(show)[0].split()
    assert place == ["0", "0", "1"]
    assert 1024 <= int(port) < 65536
    assert output_of(show)[0].split()[-1] != port  # the system gives the next one
    assert output_of(show, MASTER_PORT="1234") == ["0 0 1 1234"]
    assert output_of(show, RANK="1", WORLD_SIZE="2") == ["1 0 2 29500"]  # processes that meet


def test_a_script_runs_as_the_main_program(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, deepspeed, beside\nimport sluice.as_deepspeed\n"
        "print(__name__, sys.argv[1:], beside.VALUE, deepspeed.__version__)\nsys.exit(3)\n"
    )
    result = python("-m", "sluice.as_deepspeed", str(script), "--lr", "1")
    assert (result.stdout, result.returncode) == ("__main__ ['--lr', '1'] 7 0.19.8+sluice\n", 3)
    result = python("-m", "sluice.as_deepspeed", "-m", "beside_module", "x", PYTHONPATH=f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert "No module named beside_module" in result.stderr
    (tmp_path / "beside_module.py").write_text("import sys, deepspeed; print(__name__, sys.argv[1:], deepspeed.__version__)")
    result = python("-m", "sluice.as_deepspeed", "-m", "beside_module", "x", PYTHONPATH=f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert result.stdout == "__main__ ['x'] 0.19.8+sluice\n"


def test_a_program_that_starts_a_launcher_is_told() -> None:
    commands = [
        ["/opt/bin/torchrun", "--nproc-per-node", "2", "train.py"],
        [sys.executable, "-m", "torch.distributed.run", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["deepspeed", "train.py"],
        ["torchrun", "-m", "sluice.as_deepspeed", "train.py"],
        ["accelerate", "env"],
        ["which", "torchrun"],
        ["pip", "install", "deepspeed", "--upgrade"],
        [sys.executable, "-c", "pass"],
        ["cat", "/opt/torchrun/notes"],
    ]
    code = (
        "import pathlib, subprocess\n"
        f"for command in {commands}:\n"
        "    print(command, flush=True)\n"
        "    try: subprocess.run(command, executable='/nowhere')\n"
        "    except FileNotFoundError: pass\n"
        "try: subprocess.run('FORCE=1 torchrun train.py', shell=True, executable='/nowhere')\n"
        "except FileNotFoundError: pass\n"
        "try: subprocess.run([pathlib.Path('/x/torchrun'), b'bytes.py'], executable='/nowhere')\n"
        "except FileNotFoundError: pass\n"
    )
    result = python("-c", PRELUDE + code)
    assert result.returncode == 0, result.stderr
    started = re.findall("this program starts `(.*?)`", result.stderr)
    assert started == [
        "torchrun --nproc-per-node 2 train.py",
        "torch.distributed.run train.py",
        "accelerate launch train.py",
        "deepspeed train.py",
        "torchrun train.py",
        "torchrun bytes.py",
    ]
    assert result.stderr.count("-m sluice.as_deepspeed SCRIPT") == len(started)


@pytest.mark.parametrize(
    "arguments", [["-m", "torch.distributed.run", "train.py"], ["/opt/bin/torchrun", "train.py"], ["/opt/bin/accelerate", "launch", "train.py"]]
)
def test_a_launcher_is_refused(arguments: list[str]) -> None:
    result = python("-m", "sluice.as_deepspeed", *arguments)
    assert result.returncode == 1
    assert "starts processes in which deepspeed is not Sluice. Start them as `torchrun" in result.stderr


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["-m", "--help"]])
def test_the_help_is_no_failure(arguments: list[str]) -> None:
    result = python("-m", "sluice.as_deepspeed", *arguments)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("usage: python -m sluice.as_deepspeed script.py")


@pytest.mark.parametrize("arguments", [[], ["--num_gpus=1", "script.py"], ["missing.py"]])
def test_a_call_without_a_script_says_how(arguments: list[str]) -> None:
    result = python("-m", "sluice.as_deepspeed", *arguments)
    assert result.returncode == 1
    assert "usage: python -m sluice.as_deepspeed script.py" in result.stderr
