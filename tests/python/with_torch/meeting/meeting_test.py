"""The time that ranks have to meet, which is not that of their calls."""

from __future__ import annotations

import datetime
import os

import forked
import pytest
import torch.distributed as dist
from forked import free_port

MOST_SECONDS = 60  # PyTorch's own limit of a meeting is half an hour
START = """
import datetime, os, signal, time, sluice
import torch, torch.distributed as dist
from sluice import _meeting
_meeting._MEETING = datetime.timedelta(seconds=4)
stops, rank = lambda *_, **__: os.kill(os.getpid(), signal.SIGSTOP), os.environ["RANK"]
"""


def start(code: str) -> list[forked.Process]:
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [forked.Process(["-c", START + code], {**common, "RANK": str(rank)}, merges_outputs=True) for rank in range(2)]


MEETS = "sluice.init_distributed()"


# Rank 0 has the store: a client of it that waits for an answer waits for ever.
@pytest.mark.parametrize("place", ["_meeting._store_of_start", "dist.init_process_group"])
@pytest.mark.parametrize("still", [0, 1])
def test_ranks_end_in_time_where_one_stands_still_in_the_meeting(place: str, still: int) -> None:
    ranks = start(f"if rank == '{still}':\n    {place} = stops\n{MEETS}")
    try:
        output, _ = ranks[1 - still].communicate(MOST_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1 - still].returncode == 1
    assert f"rank {1 - still} of 2 did not meet the others at 127.0.0.1:" in output.splitlines()[-1], output
    assert " within 4 s: " in output


# That of an earlier start, at the port of before.
def test_a_rank_that_connects_to_a_store_that_ends_meets_at_the_next_one() -> None:
    ranks = start(f"""
real = _meeting.rendezvous
def ends(*arguments, **options):
    _meeting.rendezvous = real
    raise RuntimeError("Connection reset by peer")
if rank == "1":
    _meeting.rendezvous = ends
{MEETS}
dist.destroy_process_group()
""")
    try:
        ends = [(rank.communicate(MOST_SECONDS)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [code for _, code in ends] == [0, 0], ends


def test_a_rank_whose_call_does_not_come_back_ends_itself_in_time() -> None:
    ranks = start(f"dist.init_process_group = lambda *_, **__: time.sleep(100)\n{MEETS}")
    try:
        ends = [(rank.communicate(MOST_SECONDS)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    why = " within 4 s: a call of the store, or of Gloo, has not come back\n"
    assert all(code == 1 and output.startswith("sluice: rank ") and output.endswith(why) for output, code in ends), ends


@pytest.mark.parametrize("call", ["_meet", "_write"])
def test_a_rank_whose_store_stands_still_at_the_start_of_an_engine_ends_in_time(call: str) -> None:
    ranks = start(f"""
from sluice._training import peers, ranks
os.environ["SLUICE_RANK_TIMEOUT"] = "3"
if rank == "0":
    peers.Peers.{call} = stops
sluice.init_distributed()
ranks.groups()
""")
    try:
        output, _ = ranks[1].communicate(MOST_SECONDS)
    finally:
        for rank in ranks:
            rank.kill()
    assert ranks[1].returncode == 1
    assert output.startswith("sluice: rank 1 has waited 3 s for the store of the ranks at the start of its first engine: "), output


# The process of an earlier start has the port, and ends.
def test_a_rank_that_reaches_a_store_which_then_ends_comes_to_the_next_one() -> None:
    port = free_port()
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    begin = lambda rank: forked.Process(["-c", f"import sluice\n{MEETS}"], {**environment, "RANK": str(rank)}, merges_outputs=True)
    earlier: dist.TCPStore | None = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    ranks = [begin(1)]
    try:
        earlier.wait(["sluice_word1"], datetime.timedelta(seconds=MOST_SECONDS))
        earlier = None
        ranks.append(begin(0))
        ends = [(rank.communicate(MOST_SECONDS)[0], rank.returncode) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [code for _, code in ends] == [0, 0], ends


def meet_as_hosts(networks: str, addresses: str, more: str = "") -> list[str]:
    """The last lines of two ranks that have these."""
    ranks = start(f"""
own = int(rank)
_meeting._place = lambda: {{"host": f"host{{rank}}", "network": {networks}[own], "address": {addresses}[own]}}
{more}
{MEETS}
print("have met")
""")
    try:
        return [rank.communicate(MOST_SECONDS)[0].splitlines()[-1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("address", ["127.0.1.1", "::1"])
def test_a_host_whose_name_has_an_address_of_itself_alone_is_named_at_once(address: str) -> None:
    for line in meet_as_hosts(["one", "other"], ["10.0.0.1", address]):
        assert line.startswith("ConnectionError: ") and f": host host1 has {address} as the address of its own name, " in line, line
        assert "GLOO_SOCKET_IFNAME=eth0" in line and "/etc/hosts" in line and " within " not in line


def test_ranks_of_one_network_meet_by_any_address() -> None:
    assert meet_as_hosts(["one", "one"], ["127.0.1.1", "127.0.1.1"]) == 2 * ["have met"]


def test_ranks_whose_addresses_a_variable_chooses_meet() -> None:
    assert meet_as_hosts(["one", "other"], ["", ""]) == 2 * ["have met"]


def test_a_rank_that_gloo_does_not_connect_says_which_address_it_has_taken() -> None:
    lines = meet_as_hosts(["one", "other"], ["10.0.0.1", "10.0.0.2"], "dist.init_process_group = lambda *_, **__: time.sleep(100)")
    for number, line in enumerate(lines):
        assert f"has not come back. Gloo has taken the address 10.0.0.{number + 1} for this host, host{number}: " in line, line


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
