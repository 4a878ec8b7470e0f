"""Processes of scripts that have PyTorch imported when they begin: a server imports it once, and forks for each script.

The imports take 2 s of a CPU, and 1.5 s more at the first call of a module; a script of these tests takes less than half
a second. Such a process is as one that a shell starts: it has an environment, arguments and an output of its own, its
script is __main__, and its interpreter ends as any other. Sluice is imported anew in each. Variables that a library reads
at its import are those of the server: OMP_NUM_THREADS is 1.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_server: subprocess.Popen[str] | None = None


def _end(server: subprocess.Popen[str]) -> None:
    server.kill()
    server.wait()


def _ask(request: dict[str, Any]) -> Any:
    """The server's answer. It ends with this process, and so do the processes that it has forked."""
    global _server
    if _server is None:
        command = [sys.executable, "-W", "ignore", __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        _server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        atexit.register(_end, _server)
    asked, answers = _server.stdin, _server.stdout
    assert asked is not None and answers is not None
    asked.write(json.dumps(request) + "\n")
    asked.flush()
    answer = answers.readline()
    assert answer, f"{__file__} has ended with {_server.wait()}: its message is in the output of these tests"
    return json.loads(answer)


class Process:
    """A script, or code behind "-c", with its arguments. It has the members of subprocess.Popen that these tests need."""

    def __init__(self, command: Sequence[object], environment: Mapping[str, str], merges_outputs: bool = False) -> None:
        self._place = tempfile.TemporaryDirectory()
        self._out, self._error = (Path(self._place.name) / name for name in ("out", "out" if merges_outputs else "error"))
        request = {"command": [*map(str, command)], "environment": dict(environment), "folder": os.getcwd()}
        self.returncode: int | None = None
        self.pid: int = _ask({**request, "out": str(self._out), "error": str(self._error)})

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _ask({"pid": self.pid})
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Waits for its end. Returns its output, and that of its errors, which is the first one too where they are merged."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout, self._out.read_text(), self._error.read_text())
            time.sleep(0.02)
        return self._out.read_text(), self._error.read_text()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.communicate(60)


def free_port() -> int:
    """For ranks to meet at."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run_ranks(ranks: int, script: Path, *arguments: object, timeout: float = 300) -> list[str]:
    """Runs a script as ranks that meet at a free port; one alone has no such variables. Returns their outputs.

    When one fails or none ends in time, kills all, and the assertion shows the output of each.
    """
    common, started = {**os.environ, "OMP_NUM_THREADS": "1"}, []
    if ranks > 1:
        world = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        common |= {**world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        started.append(Process([script, *arguments], {**common, **own}, merges_outputs=True))
    end = time.monotonic() + timeout
    while not all(codes := [process.poll() == 0 for process in started]):
        if any(process.returncode for process in started) or time.monotonic() > end:
            break
        time.sleep(0.02)
    ends = [process.returncode for process in started]  # before those that still run are killed
    for process in started:
        process.kill()
    outputs = [process.communicate(60)[0] for process in started]
    assert all(codes), "\n".join([f"the ranks ended with {ends} (None: killed)", *outputs])
    return outputs


def run_two_ranks(script: Path, *arguments: object, **environment: str) -> None:
    """Runs a script as two processes, which get their rank and the arguments. Each prints "done", and nothing else."""
    here = f"{Path(__file__).parent / 'with_torch'}:{os.environ.get('PYTHONPATH', '')}"
    common = {**os.environ, "PYTHONPATH": here, "OMP_NUM_THREADS": "1", **environment}
    processes = [Process([script, rank, *arguments], {**common, "LOCAL_RANK": str(rank)}) for rank in range(2)]
    try:
        results = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for out, error in results:
        assert out == "done\n", error


def _await_fork(requests: IO[bytes], answers: IO[str]) -> dict[str, Any]:
    """Answers requests. Returns in each process that it forks, with what that shall do."""
    for line in iter(requests.readline, b""):
        request: dict[str, Any] = json.loads(line)
        if "pid" in request:
            pid, status = os.waitpid(request["pid"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                return request
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    sys.exit()


def _become(request: dict[str, Any]) -> None:
    """Runs the script in this process, which has been forked for it."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the server
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    for number, path in enumerate((os.devnull, request["out"], request["error"])):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    name, *arguments = request["command"]
    source, folder = (arguments[0], "") if name == "-c" else (Path(name).read_text(), str(Path(name).parent))
    sys.argv = ["-c", *arguments[1:]] if name == "-c" else [name, *arguments]
    sys.path[0] = folder
    sys.path[1:1] = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place and place not in sys.path]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    if name != "-c":
        module.__file__ = name
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))


if __name__ == "__main__":
    import torch
    import torch._dynamo  # noqa: F401  # at the first call of a module else

    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"import torch has left {threads} threads, and a fork has only one of them"
    _become(_await_fork(sys.stdin.buffer, sys.stdout))
