"""The report of an engine: bytes moved and seconds waited, as data, as text and as a table of a notebook."""

from __future__ import annotations

from typing import Any

from .._core import format_bytes
from .._tables import html_table

_LINKS = {
    "h2d_bytes": "host to device",
    "d2h_bytes": "device to host",
    "nvme_read_bytes": "read from NVMe",
    "nvme_written_bytes": "written to NVMe",
}
_STALLS = {
    "fetch_stall_seconds": "for weights",
    "gradient_stall_seconds": "for gradients",
    "update_stall_seconds": "for updates",
}
_EARLY = {"speculative_updates_kept": "kept", "speculative_updates_dropped": "done again"}
_PEAKS = {"device_peak_bytes": "device", "host_peak_bytes": "host"}


class Report(dict[str, Any]):
    """A dict: bytes of each link, seconds that computing stood still, updates that began before ``step()`` (``speculative_updates_kept``,
    ``speculative_updates_dropped``, ``speculative_dropped_seconds``), peaks of the tiers, ``steps``, ``plan``, ``choices``.

    ``print(report)`` shows a table, and a notebook shows it as one.
    """

    def _rows(self) -> list[list[str]]:
        steps = max(int(self["steps"]), 1)
        rows = [[f"bytes {name}", format_bytes(self[key]), format_bytes(self[key] // steps)] for key, name in _LINKS.items()]
        rows += [[f"waited {name}", f"{self[key]:.2f} s", f"{self[key] / steps:.3f} s"] for key, name in _STALLS.items()]
        if self["speculative_updates_kept"] or self["speculative_updates_dropped"]:
            rows += [[f"updates begun early, {name}", str(self[key]), f"{self[key] / steps:.1f}"] for key, name in _EARLY.items()]
        return rows + [[f"peak of the {name} tier", format_bytes(self[key]), ""] for key, name in _PEAKS.items()]

    def __str__(self) -> str:
        rows = [["", "in all", "a step"], *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [f"{row[0]:{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}".rstrip() for row in rows]
        return "\n".join([f"{self['steps']} steps", *lines, *(f"chosen: {choice}" for choice in self["choices"])])

    def _repr_html_(self) -> str:
        return html_table(f"{self['steps']} steps", ["", "in all", "a step"], self._rows(), self["choices"])
