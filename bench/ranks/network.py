"""Two hosts on this machine: two network namespaces with names of their own and one link of a given rate. Needs root."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ranks.runs import Failed

SUBNET = "10.231.77"
ADDRESSES = (f"{SUBNET}.1", f"{SUBNET}.2")
# The shaper's queue. A longer one delays the answers of a TCP stream behind the data of the other direction.
QUEUE = ("burst", "128kb", "latency", "5ms")
# Unanswered sends of TCP before a connection is given up: 13 to 20 s. mpirun waits so long for a host that is away; with
# Linux's 15, a quarter of an hour.
RETRIES = 5
FOR_MINUTES = 8192  # MiB of a stream that is ended from outside
# mpirun calls it in place of ssh: HOST WORDS...
AGENT = """#!/bin/sh
host=$1; shift
exec {enter} $host sh -c "$*"
"""
# Runs words in the namespace of a host, under the host's name, on the host's core.
ENTER = """#!/bin/sh
host=$1; shift
case $host in {first}) core={cores[0]};; *) core={cores[1]};; esac
exec ip netns exec {prefix}-$host unshare --uts sh -c 'hostname "$1"; core=$2; shift 2; exec taskset -c $core "$@"' enter $host $core "$@"
"""


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: {done.stderr.strip()}")


class TwoHosts:
    """The namespaces, from entering to leaving the `with`. One core of `cores` is each host's."""

    def __init__(self, folder: Path, rate: str, cores: list[int]) -> None:
        self.folder = folder
        self.rate = rate
        self.prefix = f"sluice{os.getpid()}"
        self.links = [f"sl{os.getpid()}a", f"sl{os.getpid()}b"]
        self.enter = self.script("enter", ENTER.format(first=ADDRESSES[0], cores=cores, prefix=self.prefix))
        self.agent = self.script("agent", AGENT.format(enter=self.enter))
        self.hostfile = folder / "hosts"
        self.hostfile.write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))

    def script(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def __enter__(self) -> TwoHosts:
        try:
            self.make()
        except Failed:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def space(self, host: int) -> str:
        return f"{self.prefix}-{ADDRESSES[host]}"

    def make(self) -> None:
        for host in (0, 1):
            call("ip", "netns", "add", self.space(host))
            call("ip", "-n", self.space(host), "link", "set", "lo", "up")
            call("ip", "netns", "exec", self.space(host), "sysctl", "-qw", f"net.ipv4.tcp_retries2={RETRIES}")
        first, second = self.links
        call("ip", "link", "add", first, "netns", self.space(0), "type", "veth",
             "peer", "name", second, "netns", self.space(1))  # fmt: skip
        for host, link in enumerate(self.links):
            call("ip", "-n", self.space(host), "addr", "add", f"{ADDRESSES[host]}/24", "dev", link)
            call("ip", "-n", self.space(host), "link", "set", link, "up")
            call("ip", "netns", "exec", self.space(host), "tc", "qdisc", "add", "dev", link, "root", "tbf",
                 "rate", self.rate, *QUEUE)  # fmt: skip

    def remove(self) -> None:
        for host in (0, 1):
            left = subprocess.run(["ip", "netns", "pids", self.space(host)], capture_output=True, text=True)
            for process in left.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", self.space(host)], capture_output=True)

    def cut(self) -> None:
        """Nothing passes the link any more. Neither end is told."""
        call("ip", "-n", self.space(1), "link", "set", self.links[1], "down")

    def ranks_line(self, words: list[str]) -> list[str]:
        """One rank on each host, MPI over TCP."""
        line = [str(self.enter), ADDRESSES[0], "mpirun", "--allow-run-as-root", "-n", "2", "--bind-to", "none"]
        line += ["--hostfile", str(self.hostfile), "--mca", "plm_rsh_agent", str(self.agent)]
        settings = {"btl": "tcp,self", "btl_tcp_if_include": f"{SUBNET}.0/24", "oob_tcp_if_include": f"{SUBNET}.0/24"}
        for name, value in settings.items():
            line += ["--mca", name, value]
        return line + words

    def bytes_per_second(self, mib: int = 128) -> float:
        """Bytes per second of the slower direction, while both are at work."""
        return min(float(end.communicate()[0]) for end in self.stream(mib)) * 1e6

    def stream(self, mib: int) -> list[subprocess.Popen]:
        """The two ends of a bare stream in both directions."""
        program = str(Path(__file__).with_name("link_rate.py"))
        ends = []
        for host, side in ((0, "listen"), (1, "connect")):
            line = [str(self.enter), ADDRESSES[host], sys.executable, program, side, ADDRESSES[0], "5077", str(mib)]
            ends.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        return ends

    @contextlib.contextmanager
    def filled(self) -> Iterator[None]:
        """A bare stream fills the link in both directions, inside the `with`."""
        ends = self.stream(mib=FOR_MINUTES)
        try:
            yield
        finally:
            for end in ends:
                end.kill()
                end.communicate()
