"""Public names are in the pages."""

from __future__ import annotations

import importlib
import re

import pytest
from conftest import REPOSITORY


@pytest.mark.parametrize("module", ["sluice", "sluice.accelerator", "sluice.comm", "sluice.config", "sluice.utils", "sluice.zero"])
def test_every_name_is_in_a_page(module: str) -> None:
    pages = "\n".join(path.read_text() for path in (REPOSITORY / "docs").glob("*.md"))
    names = [name for name in importlib.import_module(module).__all__ if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"\b{name}\b", pages)] == []
