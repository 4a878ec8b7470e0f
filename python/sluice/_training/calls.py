"""The calls over the ranks by operation and size, as DeepSpeed's ``comms_logger`` shows them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import torch.distributed as dist

from . import objects

log = logging.getLogger("sluice")

Key = tuple[str, int]  # operation, and with debug what for; bytes of the whole tensor
_OURS = {"all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "recv": "receive"}
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")
_TITLES = ("Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)")
_STRAGGLER_TITLES = ("Comm. Op", "Message Size", "Count", "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)")


@dataclass
class _Calls:
    operation: str
    count: int = 0
    seconds: float = 0.0


def bandwidths(operation: str, size_bytes: int, seconds: float, ranks: int) -> tuple[float, float]:
    """Algorithm and bus bandwidth in Gbps. ``size_bytes``: of the whole tensor, also of all_gather and reduce_scatter.

    The formulas of nccl-tests, and for the algorithm bandwidth of an all_reduce that of DeepSpeed, which is twice as large.
    """
    if seconds <= 0:
        return 0.0, 0.0
    rate = 8e-9 * size_bytes / seconds
    others = (ranks - 1) / ranks
    if operation == "all_reduce":
        return 2 * rate, 2 * rate * others
    return rate, rate * others if operation in ("all_gather", "reduce_scatter") else rate


class CallLog:
    """Counts the calls of all threads of this rank. One object in a process; does nothing until it is enabled."""

    def __init__(self) -> None:
        self.enabled = False
        self.verbose = False
        self.prof_all = True
        self.debug = False
        self.prof_ops: list[str] = []
        self._lock = threading.Lock()
        self._rows: dict[Key, _Calls] = {}

    def configure(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of the section "comms_logger"; an absent key or None leaves what is set."""
        for name in ("enabled", "verbose", "prof_all", "debug"):
            if settings.get(name) is not None:
                setattr(self, name, bool(settings[name]))
        if settings.get("prof_ops") is not None:
            self.prof_ops = [_OURS.get(name, name) for name in settings["prof_ops"]]

    @contextlib.contextmanager
    def timed(self, operation: str, label: str, size_bytes: int) -> Iterator[None]:
        """Counts the call inside, unless it raises."""
        if not self.enabled or not (self.prof_all or operation in self.prof_ops):
            yield
            return
        begin = time.perf_counter()
        yield
        self._add(operation, label, size_bytes, time.perf_counter() - begin)

    def _add(self, operation: str, label: str, size_bytes: int, seconds: float) -> None:
        name = f"{operation} of {label}" if self.debug and label else operation
        with self._lock:
            row = self._rows.setdefault((name, size_bytes), _Calls(operation))
            row.count += 1
            row.seconds += seconds
        if self.verbose and dist.get_rank() == 0:
            algorithm, bus = bandwidths(operation, size_bytes, seconds, dist.get_world_size())
            log.info(
                "comm op: %s | time (ms): %.2f | msg size: %s | algbw (Gbps): %.2f | busbw (Gbps): %.2f",
                name, 1e3 * seconds, size_text(size_bytes), algorithm, bus,
            )  # fmt: skip

    def rows(self) -> dict[Key, _Calls]:
        """A copy of the counts."""
        with self._lock:
            return {key: _Calls(row.operation, row.count, row.seconds) for key, row in sorted(self._rows.items())}


calls = CallLog()


def size_text(size_bytes: int) -> str:
    """In DeepSpeed's words, which are not those of a plan."""
    size, unit = float(size_bytes), 0
    while size >= 1024 and unit < len(_SIZES) - 1:
        size, unit = size / 1024, unit + 1
    return f"{round(size, 2)} {_SIZES[unit]}" if size_bytes else "0B"


def summary(ranks: int) -> dict[str, dict[int, dict[str, Any]]]:
    """By operation and size, in DeepSpeed's names. An average bandwidth is that of the average latency."""
    result: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, size), row in calls.rows().items():
        mean = row.seconds / row.count
        algorithm, bus = bandwidths(row.operation, size, mean, ranks)
        result.setdefault(name, {})[size] = {
            "count": row.count,
            "total_latency_ms": 1e3 * row.seconds,
            "avg_latency_ms": 1e3 * mean,
            "tput_avg_gbps": algorithm,
            "busbw_avg_gbps": bus,
            "msg_size_bytes": size,
            "msg_size_str": size_text(size),
        }
    return result


def stragglers(of_ranks: list[dict[Key, _Calls]], rank: int) -> dict[str, dict[int, dict[str, Any]]]:
    """The rank's latencies as that of the fastest rank, and the rest: what the call waited for others."""
    result: dict[str, dict[int, dict[str, Any]]] = {}
    for (name, size), row in of_ranks[rank].items():
        least = min(rows[name, size].seconds for rows in of_ranks if (name, size) in rows)
        result.setdefault(name, {})[size] = {
            "count": row.count,
            "total_comm_lat_ms": 1e3 * least,
            "total_straggler_ms": 1e3 * (row.seconds - least),
            "avg_comm_lat_ms": 1e3 * least / row.count,
            "avg_straggler_ms": 1e3 * (row.seconds - least) / row.count,
            "msg_size_bytes": size,
            "msg_size_str": size_text(size),
        }
    return result


def table(titles: Iterable[str], rows: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """DeepSpeed's columns: the operation on a line of its own, its sizes below."""
    lines = ["".join(f"{title: <20}" for title in titles)]
    for name, sizes in rows.items():
        lines.append(name)
        for row in sizes.values():
            count, *numbers = [value for key, value in row.items() if not key.startswith("msg_size")]
            lines.append(f"{' ': <20}{row['msg_size_str']: <20}{count: <20}" + "".join(f"{number: <20.2f}" for number in numbers))
    return "\n".join(lines)


def log_summary(show_straggler: bool, return_dict: bool) -> dict[str, Any] | None:
    """Every rank calls it. Rank 0 prints; returns the rows with ``return_dict``."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    of_ranks = objects.gather(calls.rows()) if ranks > 1 else [calls.rows()]
    shown = summary(ranks)
    late = stragglers(of_ranks, rank) if show_straggler else None
    if rank == 0:
        print(table(_TITLES, shown))
        if late is not None:
            print("_______________________________\nBreakdown with straggler effect\n-------------------------------")
            print(table(_STRAGGLER_TITLES, late))
    if not return_dict:
        return None
    metadata = {"world_size": ranks, "rank": rank, "timestamp": datetime.now().isoformat()}
    return {"summary": shown, "straggler_analysis": late, "metadata": metadata}
