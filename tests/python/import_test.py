"""The package as it is installed: what an import costs and needs, and the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sluice
from conftest import REPOSITORY, Program
from sluice._program import PROGRAM


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_the_tests_run_without_compilers() -> None:
    assert [name for name in ("cc", "c++", "g++", "clang", "cmake", "ninja") if shutil.which(name)] == []


def test_the_package_is_the_installed_one() -> None:
    assert not str(sluice.__file__).startswith(str(REPOSITORY / "python"))


def test_the_import_takes_at_most_a_second() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        assert python("import sluice._core").returncode == 0
        seconds.append(time.perf_counter() - start)
    print(f"a process that imports sluice._core takes {min(seconds):.3f} s")
    assert min(seconds) <= 1.0


def test_the_import_needs_no_torch_and_no_numpy() -> None:
    result = python(
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import sluice, sluice.ops.aio; print(sluice._core.kernel_in_use())"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("setting", "before", "expected"),
    [
        ({}, "", "passive 1000"),
        ({}, "sys.modules['torch'] = None; ", "None None"),  # OpenMP read the environment already
        ({"GOMP_SPINCOUNT": "7"}, "", "passive 7"),
        ({"OMP_WAIT_POLICY": "active"}, "", "active None"),
    ],
)
def test_threads_of_openmp_spin_shortly_unless_the_user_says_how_they_wait(
    setting: dict[str, str], before: str, expected: str
) -> None:
    code = f"import os, sys; {before}import sluice; print(*map(os.environ.get, ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')))"
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env={**others, **setting}, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == expected, result.stderr


def test_optimizers_say_that_they_need_pytorch() -> None:
    result = python("import sys; sys.modules['torch'] = None\nimport sluice; sluice.ops.adam")
    assert result.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: the optimizers of sluice.ops need PyTorch, which is not installed here: pip install torch"
    )


def test_an_unknown_part_of_ops_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'transformer'"):
        sluice.ops.transformer  # noqa: B018


@pytest.mark.parametrize("command", [["sluice"], [sys.executable, "-m", "sluice"]])
def test_the_program_comes_with_the_package(command: list[str]) -> None:
    result = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0
    assert "sluice plan" in result.stdout or "plan" in result.stdout
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert sluice.__version__ in version.stdout


def test_the_package_finds_the_libraries_that_pip_puts_beside_it() -> None:
    package = Path(sluice.__file__).parent
    for binary in [Path(PROGRAM), *package.glob("*.so"), *package.glob("lib/libsluice_train*.so")]:
        packages = "$ORIGIN/" + "../" * len(binary.relative_to(package).parents)
        for folder in ("nvidia/cu13/lib", "nvidia/nccl/lib"):
            assert (packages + folder).encode() in binary.read_bytes(), binary


@pytest.mark.parametrize("on_path", [True, False])
def test_the_line_to_go_on_can_be_run(on_path: bool, config_file, model_file, tmp_path) -> None:
    script = shutil.which("sluice")
    assert script is not None
    (tmp_path / "data").write_bytes(bytes(10_000))
    line = ["train", "--config", config_file, "--model", model_file, "--data", tmp_path / "data", "--steps", "1"]
    environment = {**os.environ, "PATH": os.path.dirname(script) if on_path else "/nowhere"}
    result = subprocess.run(
        [sys.executable, script, *line, "--report", tmp_path / "run"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    name = "sluice" if on_path else script
    assert f"as a page:\n  {name} report " in result.stdout + result.stderr
    command = [sys.executable, "-m", "sluice", *line, "--report", tmp_path / "two"]
    module = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert f"as a page:\n  {PROGRAM} report " in module.stdout + module.stderr


def test_launched_scripts_run_by_the_interpreter_of_the_package(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable)")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_EXEC"}
    command = [sys.executable, "-m", "sluice", "launch", "--num-gpus", "1", script]
    result = subprocess.run(
        command, env={**environment, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout == f"[rank 0] {sys.executable}\n", result.stderr


def output_of(*arguments: str) -> str:
    command = [sys.executable, "-m", "sluice", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize("arguments", [[], ["help"], ["-h"], ["--help"]])
def test_the_help_names_the_command_of_the_package(arguments: list[str]) -> None:
    text = output_of(*arguments)
    assert "\n  plan      show" in text
    assert text.endswith("\n  data      make token files of text\n")


@pytest.mark.parametrize("names", [["data"], ["data", "tokenize"]])
@pytest.mark.parametrize("word", ["help", "--help"])
def test_the_command_of_the_package_has_help(word: str, names: list[str]) -> None:
    assert output_of(word, *names) == output_of(*names, "--help")


def test_the_help_of_another_command_is_its_own() -> None:
    assert output_of("help", "plan") == output_of("plan", "--help")
    assert "token files of text" not in output_of("help", "plan")


def test_the_program_of_the_package_trains(program: Program, config_file, model_file, tmp_path) -> None:
    (tmp_path / "data").write_bytes(bytes(10_000))
    result = program.run(
        "train", "--config", str(config_file), "--model", str(model_file), "--data", str(tmp_path / "data"), "--steps", "1"
    )
    assert result.returncode == 0, result.stderr


MPIRUN = shutil.which("mpirun", path=f"{os.environ['PATH']}:/usr/local/bin:/usr/bin")


@pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed here")
def test_ranks_of_the_program_of_the_package_train(config_file, model_file, tmp_path) -> None:
    (tmp_path / "data").write_bytes(bytes(10_000))
    line = [PROGRAM, "launch", "--num-gpus", "2", PROGRAM, "train", "--config", config_file, "--model", model_file]
    more = ["--data", tmp_path / "data", "--steps", "1"]
    assert MPIRUN is not None
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{os.path.dirname(MPIRUN)}"}
    result = subprocess.run([*line, *more], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr


def test_an_engine_without_pytorch_is_one_line() -> None:
    with pytest.raises(ModuleNotFoundError, match="torch"):
        sluice.initialize  # noqa: B018
