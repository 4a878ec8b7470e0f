"""Texts and rows of tables for people."""

from __future__ import annotations

import html

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(count: int) -> str:
    """Bytes for people: 1536 is "1.5 KiB"."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.4g} {_UNITS[unit]}" if unit else f"{count} B"


def html_row(cells: list[str], tag: str = "td") -> str:
    """A row of an HTML table; the cells' text is escaped."""
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
