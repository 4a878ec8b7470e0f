"""Launchers, in whose processes deepspeed is not Sluice: which commands are one, and a warning where a program starts one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

log = logging.getLogger("sluice")

# Places of the arguments in the events that Python raises before it starts or becomes another program.
_EVENTS = {"subprocess.Popen": 1, "os.exec": 1, "os.posix_spawn": 1}
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_WAY = "`torchrun --nproc-per-node N -m sluice.as_deepspeed SCRIPT`, or with `-m MODULE` for SCRIPT (docs/from_deepspeed.md, Tools that start a launcher)"


def is_launcher(words: list[str]) -> bool:
    """Whether a program, or a module, and its arguments start other processes of the user's script."""
    name, rest = os.path.basename(words[0]), words[1:]
    if name in ("accelerate", "accelerate.commands.accelerate_cli"):
        return rest[:1] == ["launch"]
    if name == "deepspeed":  # not the package, as in `pip install deepspeed`
        return any(word.endswith(".py") for word in rest)
    return name in _LAUNCHERS and len(rest) > 0


def refusal(name: str) -> str:
    """For a launcher that sluice.as_deepspeed is asked to run."""
    return f"{os.path.basename(name)} starts processes in which deepspeed is not Sluice. Start them as {_WAY}"


def _launcher_in(arguments: Sequence[Any]) -> str:
    """The words from the launcher on, of a command that starts one without ``sluice.as_deepspeed``; else empty."""
    words = [word for argument in arguments for word in os.fsdecode(argument).split()]
    if "sluice.as_deepspeed" in words:
        return ""
    for at, word in enumerate(words):
        if is_launcher(words[at:]):
            return " ".join([os.path.basename(word), *words[at + 1 :]])
    return ""


def _watch(event: str, values: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    command = _launcher_in(values[_EVENTS[event]])
    if command:
        log.warning(
            "this program starts `%s`: Sluice takes DeepSpeed's place in this process only, and not in those of that launcher. Start "
            "them yourself, as %s",
            command,
            _WAY,
        )


def watch() -> None:
    """Warns from now on. Python keeps the hook until the process ends."""
    sys.addaudithook(_watch)
