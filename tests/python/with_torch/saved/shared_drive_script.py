"""One of two ranks of shared_drive_test.py, with two engines over one drive.

Arguments: the rank, and a folder for the ranks to meet in and for the drive.
"""

from __future__ import annotations

import sys
from pathlib import Path

from small_models import config, engine_of, make, train

import sluice

RANK, PLACE = int(sys.argv[1]), Path(sys.argv[2])


def main() -> None:
    sluice.init_distributed(init_method=f"file://{PLACE}/meet", rank=RANK, world_size=2)
    keys = config("nvme", PLACE / "drive")
    engines = [engine_of(make(blocks=1), keys) for _ in range(2)]
    assert {path.name for path in (PLACE / "drive" / "engine-2").iterdir()} >= {f"rank{RANK}-of-2"}
    first, second = (train(engine, range(2)) for engine in engines)
    assert first == second
    for engine in reversed(engines):
        engine.destroy()
    sluice.comm.barrier()  # the other rank has removed its folder too
    assert not (PLACE / "drive" / "engine-2").exists()
    print("done")


main()
