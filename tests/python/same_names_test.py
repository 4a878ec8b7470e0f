"""Every name of docs/deepspeed_names.md that is the same as DeepSpeed's is used by a test."""

from __future__ import annotations

from conftest import REPOSITORY
from same_names import same_names, untested, uses

PAGE = (REPOSITORY / "docs" / "deepspeed_names.md").read_text()
FOLDER = REPOSITORY / "tests" / "python"


def test_every_name_that_is_the_same_is_used_by_a_test() -> None:
    files = [path for kind in ("*_test.py", "*_script.py") for path in FOLDER.rglob(kind)]
    assert len(list(same_names(PAGE))) > 100
    assert untested(PAGE, [path.read_text() for path in files]) == []


def test_a_name_counts_where_it_is_read_from_its_owner() -> None:
    page = "## deepspeed.comm\n| `send` | same |  |\n| `recv` | not there |  |\n"
    assert untested(page, []) == ["deepspeed.comm.send"]
    for source in ("other.send()", "'comm.send'", "comm.send", "from sluice.comm import send", "comm.send = 1"):
        assert untested(page, [source]) == ["deepspeed.comm.send"]
    for source in ("comm.send()", "x = sluice.comm.send", "from sluice.comm import send\nsend()"):
        assert untested(page, [source]) == []
    assert ("get_accelerator", "device") in uses("f(get_accelerator().device())")
