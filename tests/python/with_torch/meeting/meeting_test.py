"""The time that ranks have to meet, which is not that of their calls."""

from __future__ import annotations

import os

import forked
import pytest
from forked import free_port

MOST_SECONDS = 60  # PyTorch's own limit of a meeting is half an hour
START = """
import datetime, os, time, sluice
import torch, torch.distributed as dist
from sluice import _meeting
_meeting._MEETING = datetime.timedelta(seconds=4)
stands_still, rank = lambda *_, **__: time.sleep(100), os.environ["RANK"]
"""


def start(code: str) -> list[forked.Process]:
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [forked.Process(["-c", START + code], {**common, "RANK": str(rank)}, merges_outputs=True) for rank in range(2)]


@pytest.mark.parametrize("place", ["_meeting._store_of_start", "dist.init_process_group"])
def test_a_rank_that_stands_still_in_the_meeting_is_an_error_in_time(place: str) -> None:
    ranks = start(f"if rank == '1':\n    {place} = stands_still\nsluice.init_distributed()")
    try:
        output, _ = ranks[0].communicate(MOST_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
    assert output.splitlines()[-1].startswith("ConnectionError: rank 0 of 2 did not meet the others at 127.0.0.1:"), output
    assert " within 4 s: " in output


@pytest.mark.parametrize("start_of", ["", "groups()"])
def test_calls_and_the_first_engine_have_more_time_than_the_meeting(start_of: str) -> None:
    ranks = start(f"""
from sluice._training.ranks import groups
sluice.init_distributed()
ranks = torch.tensor(float(rank))
time.sleep(7 * int(rank))
{start_of}
dist.all_reduce(ranks)
print("sum of ranks", int(ranks), flush=True)
""")
    try:
        assert [rank.communicate(MOST_SECONDS)[0] for rank in ranks] == 2 * ["sum of ranks 1\n"]
    finally:
        for rank in ranks:
            rank.kill()
