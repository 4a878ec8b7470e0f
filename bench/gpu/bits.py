"""Row 5: the same training resident, in host memory and on NVMe: the same losses, bit by bit."""

from __future__ import annotations

from dataclasses import replace

from gpu.row import Row, at_least
from gpu.training import TINY, Work, gpt, train

STEPS = 50
# Else a plan chooses by what fits, and the gradients of the tied embedding are summed in that order.
PASSES = {"micro_batches_per_pass": 2}
# Four passes sum the gradients of the tied embedding in another order, so they have a resident run
# of their own.
FOUR_PASSES = {"micro_batches_per_pass": 1}
CUBLAS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # what cuBLAS needs to sum in the same order


def same_bits(row: Row) -> None:
    measured = Work(gpt("125 M", 512), 4, 4, STEPS, clipping=1.0, sluice=PASSES, deterministic=True)
    tiny = Work(TINY, 2, 4, 6, clipping=1.0, sluice=PASSES, deterministic=True)
    work = row.place.pick(measured, tiny)
    sides = {
        "resident": replace(work, resident=True),
        "resident again": replace(work, resident=True),
        "in host memory": work,
        "in host memory, part of it updated by the GPU": replace(
            work, weights="none", sluice=PASSES | {"gpu_updates": True}
        ),
        "half of the states kept and updated by the GPU": replace(work, ratio=0.5),
        "states on NVMe": replace(work, optimizer="nvme"),
        "states and weights on NVMe": replace(work, optimizer="nvme", weights="nvme"),
        "resident, 4 passes": replace(work, resident=True, sluice=FOUR_PASSES),
        "in host memory, 4 passes": replace(work, sluice=FOUR_PASSES),
    }
    lines = row.table(f"steps of {work.steps} with the loss of the resident run, to the last bit")
    losses: dict[str, list] = {}
    for name, side in sides.items():
        run = train(row, side, **CUBLAS)
        if run.ended:
            row.lacks(f"{name}: {run.ended}")
        losses[name] = run.losses
        row.values["losses"] = losses
        if not losses["resident"]:
            return  # nothing to compare with
        other = "resident, 4 passes" if side.sluice == FOUR_PASSES else "resident"
        if name != other and run.losses and losses[other]:
            equal = equal_steps(run.losses, losses[other])
            lines.append(at_least(name, equal, "steps", work.steps))
        row.save()


def equal_steps(losses: list, others: list) -> int:
    """They have 17 digits: equal numbers are equal bits."""
    return sum(one == other and one is not None for one, other in zip(losses, others))
