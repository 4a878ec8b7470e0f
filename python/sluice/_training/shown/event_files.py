"""``engine.monitor``: a script's own values, in the files of the configuration's monitors."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .. import ranks

_JOB = "DeepSpeedJobName"


def _folder(section: Mapping[str, Any]) -> str:
    return os.path.join(section.get("output_path") or "", section.get("job_name") or _JOB)


class Monitor:
    """Writes values to the files of ``csv_monitor`` and ``tensorboard``, on rank 0. ``content``: of the configuration.

    ``enabled``: whether one of them is on. The engine's own values of each step are written without it.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        sections = {name: content.get(name) or {} for name in ("csv_monitor", "tensorboard")}
        self._folders = {name: _folder(section) for name, section in sections.items() if section.get("enabled")}
        self.enabled = bool(self._folders)
        self._events: Any = None  # of TensorBoard

    def write_events(self, event_list: Iterable[tuple[str, Any, int]]) -> None:
        """``event_list``: name, value and step of each. Where no monitor is on, it does nothing, as in DeepSpeed.

        Raises OSError, and ModuleNotFoundError where ``tensorboard`` is on and the package of that name is not there.
        """
        if not self.enabled or ranks.rank() != 0:
            return
        events = list(event_list)
        if "csv_monitor" in self._folders:
            for name, value, step in events:
                self._append_row(name, value, step)
        if "tensorboard" in self._folders:
            self._append_events(events)

    def _append_row(self, name: str, value: Any, step: int) -> None:
        folder = self._folders["csv_monitor"]
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name.replace("/", "_").replace(" ", "_") + ".csv"), "a", newline="") as file:
            writer = csv.writer(file)
            if file.tell() == 0:
                writer.writerow(["step", name.rsplit("/", 1)[-1]])
            writer.writerow([step, float(value)])

    def _append_events(self, events: list[tuple[str, Any, int]]) -> None:
        if self._events is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"engine.monitor writes events by PyTorch's SummaryWriter, and {error.name} is not installed: pip install "
                    'tensorboard, or use "csv_monitor". The engine\'s own values need no package'
                ) from None
            self._events = SummaryWriter(self._folders["tensorboard"])  # type: ignore[no-untyped-call]
        for name, value, step in events:
            self._events.add_scalar(name, value, step)
        self._events.flush()
