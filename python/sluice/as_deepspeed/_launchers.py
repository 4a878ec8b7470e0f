"""A warning where a program starts a launcher, in whose processes deepspeed is not Sluice."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

log = logging.getLogger("sluice")

# Places of the arguments in the events that Python raises before it starts or becomes another program.
_EVENTS = {"subprocess.Popen": 1, "os.exec": 1, "os.posix_spawn": 1}
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed")


def launcher_in(arguments: Sequence[Any]) -> str:
    """The words from the launcher on, of a command that starts one without ``sluice.as_deepspeed``; else empty."""
    words = [word for argument in arguments for word in os.fsdecode(argument).split()]
    if "sluice.as_deepspeed" in words:
        return ""
    for at, word in enumerate(words):
        name = os.path.basename(word)
        if name in _LAUNCHERS or (name == "accelerate" and words[at + 1 : at + 2] == ["launch"]) or name == "accelerate.commands.launch":
            return " ".join([name, *words[at + 1 :]])
    return ""


def _watch(event: str, values: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    command = launcher_in(values[_EVENTS[event]])
    if command:
        log.warning(
            "this program starts `%s`: Sluice takes DeepSpeed's place in this process only, and not in those of that launcher. Start "
            "them yourself, as `torchrun --nproc-per-node N -m sluice.as_deepspeed SCRIPT`, or with `-m MODULE` for SCRIPT "
            "(docs/from_deepspeed.md, Tools that start a launcher)",
            command,
        )


def watch() -> None:
    """Warns from now on. Python keeps the hook until the process ends."""
    sys.addaudithook(_watch)
