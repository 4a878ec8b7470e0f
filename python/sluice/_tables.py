"""Tables of notebooks."""

from __future__ import annotations

import html


def html_table(caption: str, header: list[str], rows: list[list[str]], choices: list[str]) -> str:
    """A table, and a list below it; all text is escaped."""
    chosen = "".join(f"<li>{html.escape(choice)}</li>" for choice in choices)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead>{_row(header, 'th')}</thead><tbody>"
        + "".join(_row(row, "td") for row in rows)
        + f"</tbody></table><ul>{chosen}</ul>"
    )


def _row(cells: list[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
