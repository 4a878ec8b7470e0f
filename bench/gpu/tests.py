"""The tests with the label `gpu`, run as they lie in the bundle, and the checks of the Python package's wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from paired import ending

from gpu.machine import REPOSITORY
from gpu.row import Place, last

LIMIT_SECONDS = 300.0  # of one program
NO_GPU = "needs an NVIDIA GPU"  # what a skipped test says


def run_tests(place: Place, names: list[str], log: Path) -> dict:
    """The document of tests.json but for its facts; all output goes to `log`."""
    with log.open("w") as output:
        programs = [run_program(place, name, output) for name in names]
        programs += [run_wheel(place, wheel, output) for wheel in wheels_of(place)]
    return {"programs": programs, "passed": bool(programs) and all(map(is_good, programs))}


def is_good(program: dict) -> bool:
    """A program whose tests all skipped shows nothing."""
    return program["ended"] == "" and not program["failed"] and program["passed"] > 0


def run_program(place: Place, name: str, output) -> dict:
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as folder:
        report = Path(folder) / "report.json"
        line = [place.program(name), f"--gtest_output=json:{report}"]
        environment = {**place.environment, "SLUICE_TEST_PROGRAM": place.program("sluice")}
        ended = ""
        try:
            done = subprocess.run(
                line,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                cwd=folder,
                timeout=LIMIT_SECONDS,
            )
            said = done.stdout
            if done.returncode not in (0, 1):  # 1: a test failed, which the report has
                ended = f"{ending(done.returncode)}: {last(said)}"
        except FileNotFoundError:
            said, ended = "", "it is not there"
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            ended = f"it did not end in {LIMIT_SECONDS:.0f} s: {last(said)}"
        if not place.rehearsal and NO_GPU in said:
            ended = f"tests were skipped: {NO_GPU}"
        output.write(f"== {name}\n{said}\n{ended}\n")
        cases = read_cases(report)
    if not cases and not ended:
        ended = f"no report: {last(said)}"
    return {"name": name, "ended": ended, **cases_by_result(cases)}


def wheels_of(place: Place) -> list[Path]:
    """The bundle's; without a GPU there is nothing to check."""
    return [] if place.rehearsal else sorted(place.binaries.parent.glob("python/*.whl"))


def run_wheel(place: Place, wheel: Path, output) -> dict:
    """The checks of tests/python/with_torch/gpu_script.py, each a test, with the wheel unpacked beside this Python's torch."""
    script = REPOSITORY / "tests/python/with_torch/gpu_script.py"
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        environment = {**place.environment, "PYTHONPATH": folder}
        line = [sys.executable, str(script)]
        try:
            done = subprocess.run(
                line,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                timeout=LIMIT_SECONDS,
            )
            said = done.stdout
            ended = "" if done.returncode in (0, 1) else f"{ending(done.returncode)}: {last(said)}"
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"").decode(errors="replace")
            ended = f"it did not end in {LIMIT_SECONDS:.0f} s: {last(said)}"
    output.write(f"== {wheel.name}\n{said}\n{ended}\n")
    failed = {text.split("\n", 1)[0]: text[-500:] for text in ("\n" + said).split("\nFAILED ")[1:]}
    passed = sum(line.startswith("passed ") for line in said.splitlines())
    if not (passed or failed or ended):
        ended = f"no check ran: {last(said)}"
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
