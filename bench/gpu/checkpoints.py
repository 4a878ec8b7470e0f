"""Row 9: a step while a checkpoint is written to the drive, of a step without one."""

from __future__ import annotations

import statistics

from gpu.row import Row, at_most
from gpu.training import TINY, Run, Work, gpt, train

BAR = 1.10
WARM_STEPS = 3


def checkpoints(row: Row) -> None:
    """Two rounds: with checkpoints, and without them as the control of the steps between."""
    measured = Work(gpt("1.3 B", 1024), 8, 1, 200, clipping=1.0, checkpoint_every=50)
    tiny = Work(TINY, 2, 1, 24, clipping=1.0, checkpoint_every=6)
    work = row.place.pick(measured, tiny)
    lines = row.table(f"seconds of a step in a checkpoint's interval, every {work.checkpoint_every}")
    for number in (1, 2):
        run = train(row, work, row.seconds_left() / (3 - number))
        if run.ended:
            row.lacks(f"round {number}: {run.ended}")
        row.values[f"round {number}"] = {"steps": run.steps}
        lines += interval_lines(f"round {number}", run, work.checkpoint_every)
        row.save()


def interval_lines(case: str, run: Run, every: int) -> list[dict]:
    """Means of whole intervals, so that a step that waits for a checkpoint counts, wherever it is.
    Before the first checkpoint nothing is written: that interval is what others are compared with."""
    seconds = [step["seconds"] for step in run.steps]
    first = seconds[WARM_STEPS:every]
    whole = [seconds[at : at + every] for at in range(every, len(seconds) - every + 1, every)]
    if not first or not whole:
        return []
    without = statistics.mean(first)
    written = statistics.mean(statistics.mean(interval) for interval in whole)
    line = at_most(case, written, "s/step", BAR * without)
    note = f"{written / without:.3f} of a step without one, bar {BAR}; {len(whole)} intervals"
    return [line | {"peer": without, "note": note}]
