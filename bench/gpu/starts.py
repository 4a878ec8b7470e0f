"""Row 8: the time from the command to the end of the first step."""

from __future__ import annotations

from gpu.row import Row, at_most, figure
from gpu.training import TINY, Model, Work, gpt, train

ROUNDS = 2
STEPS = 2
CASES: list[tuple[Model, int, float | None]] = [  # micro-batch, seconds at most
    (gpt("1.3 B", 1024), 8, 15.0),
    (gpt("6.7 B", 2048), 2, 35.0),
]
REHEARSED: list[tuple[Model, int, float | None]] = [(TINY, 2, None)]


def starts(row: Row) -> None:
    """The second round finds the files in the page cache, as the first one of a busy machine does."""
    lines = row.table("seconds from the command to the end of the first step")
    for number in range(1, ROUNDS + 1):
        for model, micro_batch, bar in row.place.pick(CASES, REHEARSED):
            case = f"{model.name}, round {number}"
            run = train(row, Work(model, micro_batch, 1, STEPS, clipping=1.0))
            if run.ended:
                row.lacks(f"{case}: {run.ended}")
            if run.first_step_seconds is None:
                continue
            took = run.first_step_seconds
            lines.append(figure(case, took, "s") if bar is None else at_most(case, took, "s", bar))
            parts = (run.report or {}).get("start_seconds")
            row.values.setdefault("start_seconds", {})[case] = parts
            row.save()
