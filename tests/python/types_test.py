"""Types, signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import sluice
import sluice._core
import sluice.config
import sluice.ops.aio
from conftest import REPOSITORY, names_without_docstring

PACKAGE = Path(sluice.__file__).parent


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**os.environ, "MYPY_CACHE_DIR": str(tmp_path_factory.mktemp("mypy"))}


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert (PACKAGE / "_core.pyi").is_file()


# Classes of pybind11 have a metaclass of their own, and a constructor also where none is bound.
OF_PYBIND11 = re.compile(r"sluice\._core\.\w+(\.__init__)? is inconsistent, (metaclass differs|stub does not have \*args parameter \"args\")")


def test_the_stub_has_the_names_of_the_module(mypy_cache: dict[str, str], tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "sluice._core"],
        cwd=tmp_path,
        env=mypy_cache,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = (result.stdout + result.stderr).splitlines()
    assert any(OF_PYBIND11.match(line) for line in lines)  # it ran
    assert [line for line in lines if not OF_PYBIND11.match(line)] == []


def arguments_in_stub() -> dict[str, list[str]]:
    """Arguments of each function and method, by its name."""
    found = {}
    for node in ast.parse((PACKAGE / "_core.pyi").read_text()).body:
        functions = [node] if isinstance(node, ast.FunctionDef) else []
        prefix = ""
        if isinstance(node, ast.ClassDef):
            prefix = node.name + "."
            functions = [f for f in node.body if isinstance(f, ast.FunctionDef) and not f.decorator_list]
        for function in functions:
            found[prefix + function.name] = [argument.arg for argument in function.args.args]
    return found


def arguments_in_module() -> dict[str, list[str]]:
    found = {}
    for name, value in vars(sluice._core).items():
        functions = {name: value} if inspect.isbuiltin(value) else {}
        if inspect.isclass(value):
            functions = {f"{name}.{part}": member for part, member in vars(value).items() if inspect.isroutine(member)}
        for path, function in functions.items():
            # pybind11 begins a docstring with the signature.
            match = re.match(r"\w+\((.*)\)(?: -> .*)?$", (function.__doc__ or "").split("\n")[0])
            if match and not path.endswith("_pybind11_conduit_v1_"):
                found[path] = re.findall(r"(?:^|, )(\w+)(?=: )", match[1])
    return found


def test_the_stub_has_the_arguments_of_the_module() -> None:
    stub, module = arguments_in_stub(), arguments_in_module()
    assert len(module) > 25
    assert {path: stub.get(path) for path in module} == module
    assert set(stub) - set(module) == set()


def test_the_package_passes_mypy(mypy_cache: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "sluice", ignore=shutil.ignore_patterns("*.so", "bin", "__pycache__"))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(REPOSITORY / "pyproject.toml"), "-p", "sluice"],
        cwd=tmp_path,
        env=mypy_cache,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("module", [sluice, sluice.config, sluice.ops.aio], ids=lambda module: module.__name__)
def test_every_public_name_has_a_docstring(module: object) -> None:
    assert names_without_docstring(module) == []
