"""``python -m sluice.as_deepspeed script.py [arguments]``: runs a script, or a module after ``-m``, that finds deepspeed."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from ._launchers import is_launcher, refusal

_USAGE = "usage: python -m sluice.as_deepspeed script.py [arguments], or -m module [arguments]"


def main(arguments: Sequence[str]) -> None:
    """Runs the script as the main program. ``arguments``: those of the command line."""
    is_module = arguments[:1] == ["-m"]
    given = list(arguments[1:] if is_module else arguments)
    if given[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return
    if not given or given[0].startswith("-"):
        sys.exit(_USAGE)
    if is_launcher(given):
        sys.exit(refusal(given[0]))
    sys.argv = given
    if is_module:
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(given[0]):
        sys.exit(f"there is no script {given[0]}\n{_USAGE}")
    sys.path[0] = os.path.dirname(os.path.abspath(given[0]))  # the folder of the script, as `python script.py` has it
    runpy.run_path(given[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
