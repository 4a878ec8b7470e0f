"""Compares a training step with that of PyTorch alone and of DeepSpeed ZeRO-3, in alternating runs.

bench/peers/README.md says what is compared and how; bench/peers/setup.sh makes what is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from peer_environment import HERE, REPOSITORY, missing_operators, versions

from paired import GIB, MIB, Progress, folder_on_drive, machine, output_of, write_result
from rounds import Steps, alternate
from row_report import text_table
from step_cases import CASES, IDLE, OPTIMIZER, SETTINGS_AXES, Case, Settings, Side
from step_inputs import SEED, Inputs, parameter_count, shape_of
from step_report import LOSS_TOLERANCE, Runs, loss_difference, loss_text, rows_of, sides_table
from step_runs import WARM_STEPS, Run, SideFailed, run

OPERATORS = ("async_io", "cpu_adam", "deepspeed_shm_comm", "pin_memory")
MODEL = shape_of(layers=12, width=896, heads=14, length=512)
TINY = shape_of(layers=2, width=256, heads=4, length=64)
SMALLEST = shape_of(layers=1, width=64, heads=1, length=64)
IDLE_STEPS = 200  # of a millisecond each
SWEEP_STEPS = WARM_STEPS + 5
# Two slots of 12 bytes, initial weights of 4, and something for the rest.
DISK_BYTES_PER_PARAMETER = 32


class Bench:
    """Runs sides in a folder on the drive, one at a time."""

    def __init__(self, folder: Path, program: Path, model: dict, sequences: int) -> None:
        self.folder = folder
        self.program = program
        self.model = model
        self.sequences = sequences  # of a step, each a micro-batch
        self.inputs = Inputs(folder / "inputs").make(model)
        self.idle_inputs = Inputs(folder / "idle").make(SMALLEST)
        self.settings: dict[Side, Settings] = {}
        self.configurations: dict[str, dict] = {}
        self.failed: dict[Case, str] = {}

    @property
    def parameters(self) -> int:
        return parameter_count(self.model)

    def run(self, side: Side, steps: int, settings: Settings | None = None) -> Run:
        settings = settings or self.settings.get(side, Settings())
        configuration = side.configuration(self.parameters, self.folder / "swap", settings, self.sequences)
        self.configurations[str(side)] = configuration
        return self._run(side, configuration, self.inputs, self.model, steps, self.sequences)

    def idle_bytes(self, program: str) -> int:
        """Resident bytes of a process that trains the smallest model: the program and its libraries."""
        side = IDLE[program]
        parameters = parameter_count(SMALLEST)
        configuration = side.configuration(parameters, self.folder / "swap", Settings(), 1)
        run = self._run(side, configuration, self.idle_inputs, SMALLEST, IDLE_STEPS, 1)
        return run.peak_bytes

    def sides(self, case: Case, steps: int) -> dict[str, Callable[[], Run | None]]:
        sides = {"ours": case.ours, "peer": case.peer, "again": case.peer}
        return {
            name: lambda side=side: self._measure(case, side, steps) for name, side in sides.items()
        }

    def _measure(self, case: Case, side: Side, steps: int) -> Run | None:
        """Nothing when a side of the case has failed, now or before."""
        if case in self.failed:
            return None
        try:
            return self.run(side, steps)
        except SideFailed as error:
            self.failed[case] = f"{side}: {error}"
            return None

    def _run(
        self, side: Side, configuration: dict, inputs: Inputs, model: dict, steps: int, sequences: int
    ) -> Run:
        report, swap = self.folder / "report", self.folder / "swap"
        for folder in (report, swap):
            folder.mkdir()
        try:
            if side.program == "sluice":
                line = self._sluice_line(configuration, inputs, steps, report)
            else:
                line = self._torch_line(side, configuration, inputs, steps, sequences, report)
            return run(line, report, tokens=sequences * model["n_positions"])
        finally:
            for folder in (report, swap):
                shutil.rmtree(folder)

    def _sluice_line(
        self, configuration: dict, inputs: Inputs, steps: int, report: Path
    ) -> list[str]:
        config = report / "ds.json"
        config.write_text(json.dumps(configuration))
        line = [str(self.program), "train", "--config", str(config), "--model", str(inputs.model)]
        line += ["--data", str(inputs.text), "--init", str(inputs.weights), "--seed", str(SEED)]
        return [*line, "--steps", str(steps), "--report", str(report)]

    def _torch_line(
        self, side: Side, configuration: dict, inputs: Inputs, steps: int, sequences: int, report: Path
    ) -> list[str]:
        spec = {"inputs": str(inputs.folder), "steps": steps, "sequences": sequences, "report": str(report)}
        if side.program in ("deepspeed", "python"):
            spec[side.program] = configuration
        else:
            spec["optimizer"] = OPTIMIZER
        path = report / "spec.json"
        path.write_text(json.dumps(spec))
        return [sys.executable, str(HERE / "torch_train.py"), str(path)]


class Sweep:
    """The settings with which a side of DeepSpeed's is fastest: one axis after the other."""

    def __init__(self, bench: Bench, side: Side, progress: Progress) -> None:
        self.bench = bench
        self.side = side
        self.steps = Steps(progress, f"sweep of {side}")
        self.runs: dict[Settings, Run | None] = {}

    def best(self) -> Settings:
        best = Settings()
        # The best of an axis is the first of those that are tried of the next one.
        count = sum(len(values) - 1 for values in SETTINGS_AXES.values()) + 1
        self.steps.expect("settings", count)
        for axis, values in SETTINGS_AXES.items():
            candidates = [dataclasses.replace(best, **{axis: value}) for value in values]
            best = max(candidates, key=self._rate)
        return best

    def _rate(self, settings: Settings) -> float:
        if not settings.swaps(self.bench.parameters):
            return 0
        if settings not in self.runs:
            self.steps.step(str(settings))
            try:
                self.runs[settings] = self.bench.run(self.side, SWEEP_STEPS, settings)
            except SideFailed:
                self.runs[settings] = None
        run = self.runs[settings]
        return run.tokens_per_second if run else 0

    def text(self, settings: Settings) -> str:
        run = self.runs[settings]
        if run is None:
            return f"  {settings}: failed"
        moved = run.drive_bytes / self.bench.parameters
        peak = f"{run.peak_bytes / MIB:,.0f} MiB resident"
        speed = f"{run.tokens_per_second:,.0f} tokens/s"
        return f"  {settings}: {speed}, drive {moved:.1f} B/param, {peak}"


def sweep(bench: Bench, sides: list[Side], progress: Progress) -> dict[str, list[dict]]:
    """Gives the bench the best settings of each side; returns what was tried."""
    tried = {}
    for side in sides:
        of = Sweep(bench, side, progress)
        bench.settings[side] = of.best()
        progress.clear()
        print(f"settings of {side}:")
        print("\n".join(map(of.text, of.runs)))
        print(f"  chosen: {bench.settings[side]}\n", flush=True)
        tried[str(side)] = [
            {"settings": dataclasses.asdict(settings), "run": run and dataclasses.asdict(run)}
            for settings, run in of.runs.items()
        ]
    return tried


def take_settings(bench: Bench, sides: list[Side], result: Path) -> None:
    """Gives the bench the best settings of each side, of those that an earlier run tried."""
    tried = json.loads(result.read_text())["settings_tried"]
    for side in sides:
        if not (runs := [each for each in tried.get(str(side), []) if each["run"]]):
            sys.exit(f"{result} has no settings of {side}")
        best = max(runs, key=lambda each: Run(**each["run"]).tokens_per_second)
        bench.settings[side] = Settings(**best["settings"])
        print(f"settings of {side}: {bench.settings[side]}\n", flush=True)


def parse_arguments() -> argparse.Namespace:
    line = "bench/peers/.venv/bin/python bench/peers/step_peers.py /mnt/nvme --out steps.json"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], epilog=f"example: {line}")
    parser.add_argument("directory", metavar="DIR", type=folder_on_drive, help="on the drive to use")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="every value, and the facts")
    names = [case.name for case in CASES]
    parser.add_argument("--cases", default=",".join(names), help=f"of {', '.join(names)} (all)")
    parser.add_argument("--rounds", type=int, default=7, help="of three runs of each case (7)")
    steps_help = f"of a run, the first {WARM_STEPS} not counted (12)"
    parser.add_argument("--steps", type=int, default=12, help=steps_help)
    tokens = MODEL["n_positions"]
    parser.add_argument("--tokens", type=int, default=tokens, help=f"of a sequence ({tokens})")
    parser.add_argument("--sequences", type=int, default=1, help="of a step, each a micro-batch (1)")
    parser.add_argument("--no-sweep", action="store_true", help=f"DeepSpeed: {Settings()}")
    settings_help = "DeepSpeed: what the sweep of this result found"
    parser.add_argument("--settings", type=Path, metavar="FILE.json", help=settings_help)
    parser.add_argument("--tiny", action="store_true", help="a tiny model: does all of it run?")
    built = REPOSITORY / "build/bin"
    parser.add_argument("--binaries", type=Path, default=built, help="of sluice", metavar="DIR")
    arguments = parser.parse_args()
    check(arguments, parser.error)
    return arguments


def check(arguments: argparse.Namespace, fail: Callable[[str], NoReturn]) -> None:
    names = {case.name for case in CASES}
    if unknown := set(arguments.cases.split(",")) - names:
        fail(f"no case {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    if arguments.rounds < 1 or arguments.steps < WARM_STEPS + 2:
        fail(f"at least 1 round, of {WARM_STEPS + 2} steps")
    chosen = [case for case in CASES if case.name in arguments.cases.split(",")]
    has_peer = any("deepspeed" in (case.ours.program, case.peer.program) for case in chosen)
    if has_peer and (missing := missing_operators(*OPERATORS)):
        fail(f"DeepSpeed's {', '.join(missing)} not built; run bench/peers/setup.sh")
    program = arguments.binaries / "sluice"
    if not program.is_file():
        fail(f"{program} is not there; build it, or name its folder with --binaries")
    if not arguments.directory.is_dir():
        fail(f"{arguments.directory} is no directory")
    if arguments.sequences < 1:
        fail("--sequences is at least 1")
    if arguments.tokens < 1 or (arguments.tiny and arguments.tokens != MODEL["n_positions"]):
        fail("--tokens is at least 1, and the tiny model has its own")
    needed = DISK_BYTES_PER_PARAMETER * parameter_count(model_of(arguments))
    free = shutil.disk_usage(arguments.directory).free
    if free < needed:
        fail(f"{arguments.directory}: {free / GIB:.1f} GiB free, {needed / GIB:.1f} GiB needed")


def model_of(arguments: argparse.Namespace) -> dict:
    return TINY if arguments.tiny else {**MODEL, "n_positions": arguments.tokens}


def idle_bytes(bench: Bench, cases: list[Case], progress: Progress) -> dict[str, int]:
    """Idle bytes of each program of the cases. A side whose program does not run has failed."""
    idle = {}
    for program in {side.program: None for case in cases for side in (case.ours, case.peer)}:
        progress.show(f"an idle process of {program}")
        try:
            idle[program] = bench.idle_bytes(program)
        except SideFailed as error:
            for case in cases:
                if program in (case.ours.program, case.peer.program):
                    bench.failed[case] = f"the smallest model on {program}: {error}"
    return idle


def compare(bench: Bench, arguments: argparse.Namespace) -> dict:
    """Prints the tables; returns the facts of the result."""
    cases = [case for case in CASES if case.name in arguments.cases.split(",")]
    progress = Progress()
    idle = idle_bytes(bench, cases, progress)
    tried = {}
    able = [case.peer for case in cases if case not in bench.failed]
    swapping = list({side: None for side in able if side.optimizer == "nvme"})
    if arguments.settings:
        take_settings(bench, swapping, arguments.settings)
    elif not arguments.no_sweep:
        tried = sweep(bench, swapping, progress)
    sides = {case: bench.sides(case, arguments.steps) for case in cases}
    runs = alternate(sides, arguments.rounds, Steps(progress, "comparison"))
    progress.clear()
    runs = {case: of for case, of in runs.items() if case not in bench.failed}
    parts = [title(bench, arguments)]
    rows = []
    if runs:
        rows = rows_of(runs, idle, bench.parameters)
        parts += [*map(text_table, rows), sides_table(runs, idle, bench.parameters)]
        parts += ["\n".join(loss_text(case, of) for case, of in runs.items())]
    parts += [f"{case}: FAILED: {why}" for case, why in bench.failed.items()]
    print("\n\n".join(parts))
    facts = {"rounds": arguments.rounds, "steps": arguments.steps, "settings_tried": tried}
    return facts | facts_of(bench, runs, idle) | {"rows": rows}


def facts_of(bench: Bench, runs: dict[Case, Runs], idle: dict[str, int]) -> dict:
    return {
        "model": bench.model,
        "sequences": bench.sequences,
        "parameters": bench.parameters,
        "configurations": bench.configurations,
        "idle_bytes": idle,
        "loss_differences": {case.name: loss_difference(of) for case, of in runs.items()},
        "failed": {case.name: why for case, why in bench.failed.items()},
        "runs": {
            case.name: {side: list(map(dataclasses.asdict, of)) for side, of in sides.items()}
            for case, sides in runs.items()
        },
    }


def title(bench: Bench, arguments: argparse.Namespace) -> str:
    tokens = bench.sequences * bench.model["n_positions"]
    count = f"{bench.parameters / 1e6:.1f} M parameters, {tokens} tokens a step"
    note = " (tiny: its bars say nothing)" if arguments.tiny else ""
    return f"GPT-2 of {count}, bf16, {arguments.rounds} rounds of {arguments.steps} steps{note}"


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was written is removed then too
    program = arguments.binaries / "sluice"
    with tempfile.TemporaryDirectory(prefix="sluice-peers-", dir=arguments.directory) as folder:
        bench = Bench(Path(folder), program, model_of(arguments), arguments.sequences)
        facts = {
            "machine": machine(arguments.directory),
            "versions": {"sluice": output_of(program, "--version"), **versions()},
            "command": shlex.join(sys.argv),
        } | compare(bench, arguments)
    if arguments.out:
        names = {folder: "DIR", str(arguments.directory): "DIR", sys.prefix: "bench/peers/.venv"}
        write_result(arguments.out, REPOSITORY, facts, names)
    differences = facts["loss_differences"].values()
    if facts["failed"] or any(difference > LOSS_TOLERANCE for difference in differences):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
