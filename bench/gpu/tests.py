"""The tests with the label `gpu`, run as they lie in the bundle, and the checks of the Python package's wheel."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import partial
from io import FileIO
from pathlib import Path

from paired import ending

from gpu.machine import REPOSITORY
from gpu.processes import run_within
from gpu.row import Place, last

LIMIT_SECONDS = 120.0  # of one program, and of one check of the wheel
NO_TIME = "not begun: no time left"
NO_GPU = "needs an NVIDIA GPU"  # what a skipped test says
CHECKS = REPOSITORY / "tests/python/with_torch/gpu_script.py"


def run_tests(
    place: Place, names: list[str], log: Path, deadline: float, keep: Callable[[dict], None]
) -> dict:
    """The document of tests.json but for its facts; all output goes to `log`. `keep` gets what there is after each program."""
    runs = [partial(run_program, place, name) for name in names]
    runs += [partial(run_wheel, place, wheel) for wheel in wheels_of(place)]
    programs: list[dict] = []
    with log.open("w+b", buffering=0) as output:  # a kill loses nothing of it
        for run in runs:
            programs.append(run(output, deadline))
            keep({"programs": programs, "passed": False})
    return {"programs": programs, "passed": bool(programs) and all(map(is_good, programs))}


def is_good(program: dict) -> bool:
    """A program whose tests all skipped shows nothing."""
    return program["ended"] == "" and not program["failed"] and program["passed"] > 0


def run_one(
    title: str, line: list[str], deadline: float, output: FileIO, **more
) -> tuple[int | None, str, str]:
    """Exit status, what the program said, and how it ended: "" where it ran to its end, with 0 or 1."""
    output.write(f"== {title}\n".encode())
    limit = min(LIMIT_SECONDS, deadline - time.monotonic())
    status, said = None, ""
    if limit <= 0:
        ended = NO_TIME
    else:
        try:
            status, said = run_within(line, limit, output, **more)
            ended = "" if status in (0, 1) else f"{ending_of(status, limit)}: {last(said)}"
        except FileNotFoundError:
            ended = "it is not there"
    output.write(f"\n{ended}\n".encode())
    return status, said, ended


def ending_of(status: int | None, limit: float) -> str:
    return f"it did not end in {limit:.0f} s" if status is None else ending(status)


def run_program(place: Place, name: str, output: FileIO, deadline: float) -> dict:
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as folder:
        report = Path(folder) / "report.json"
        line = [place.program(name), f"--gtest_output=json:{report}"]
        environment = {**place.environment, "SLUICE_TEST_PROGRAM": place.program("sluice")}
        # 1: a test failed, which the report has
        _, said, ended = run_one(name, line, deadline, output, env=environment, cwd=folder)
        cases = read_cases(report)
    if not place.rehearsal and NO_GPU in said:
        ended = f"tests were skipped: {NO_GPU}"
    if not cases and not ended:
        ended = f"no report: {last(said)}"
    return {"name": name, "ended": ended, **cases_by_result(cases)}


def wheels_of(place: Place) -> list[Path]:
    """The bundle's; without a GPU there is nothing to check."""
    return [] if place.rehearsal else sorted(place.binaries.parent.glob("python/*.whl"))


def run_wheel(place: Place, wheel: Path, output: FileIO, deadline: float) -> dict:
    """The checks of the Python package, each a test, with the wheel unpacked beside this Python's torch.

    Each check has a process of its own: some errors of CUDA fail all that a process does behind them.
    """
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        environment = {**place.environment, "PYTHONPATH": folder}

        def run(what: str, title: str) -> tuple[int | None, str, str]:
            line = [sys.executable, str(CHECKS), what]
            return run_one(title, line, deadline, output, env=environment)

        status, said, ended = run("--list", wheel.name)
        # Its other lines are warnings of PyTorch.
        names = re.findall(r"^check (\w+)$", said, re.MULTILINE) if status == 0 else []
        failed = {}
        for name in names:
            status, said, why = run(name, name)
            if status != 0:
                failed[name] = (why or said)[-500:]
    if not (names or ended):
        ended = f"no check ran: {last(said)}"
    passed = len(names) - len(failed)
    return {"name": wheel.name, "ended": ended, "passed": passed, "failed": failed, "skipped": []}


def read_cases(report: Path) -> list[dict]:
    if not report.exists():
        return []
    suites = json.loads(report.read_text())["testsuites"]
    return [case for suite in suites for case in suite["testsuite"]]


def cases_by_result(cases: list[dict]) -> dict:
    def name(case: dict) -> str:
        return f"{case['classname']}.{case['name']}"

    failed = {
        name(case): case["failures"][0]["failure"][-500:] for case in cases if "failures" in case
    }
    skipped = [name(case) for case in cases if case["result"] == "SKIPPED"]
    return {"passed": len(cases) - len(failed) - len(skipped), "failed": failed, "skipped": skipped}
