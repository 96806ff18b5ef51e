"""Pieces of an HTML page; every text is escaped here and nowhere else."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

Cell = str | int | float | None
_TEXT = ' class="text"'


def number(value: float | None) -> str:
    """A figure for readers: four significant digits, a dash where it is undefined."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def paragraph(text: str, *, css: str = "") -> str:
    """A paragraph of plain text."""
    attribute = f' class="{escape(css)}"' if css else ""
    return f"<p{attribute}>{escape(text)}</p>"


def bullets(texts: Sequence[str], *, css: str = "") -> str:
    """A list of plain texts, nothing for no texts."""
    attribute = f' class="{escape(css)}"' if css else ""
    return f"<ul{attribute}>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>" if texts else ""


def section(heading: str, *parts: str) -> str:
    """A section with its heading; the parts are HTML."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n{chr(10).join(parts)}\n</section>"


def table(caption: str, headers: Sequence[str], rows: Sequence[Sequence[Cell]], *, marked: Collection[int] = ()) -> str:
    """A table whose first cell of a row is its header, in a box of its own that scrolls on narrow screens.

    Args:
        caption: above the table.
        headers: one per column.
        rows: at least one; texts align left, figures right.
        marked: positions of rows to emphasise.
    """
    textual = [isinstance(cell, str) for cell in rows[0]]
    columns = zip(headers, textual, strict=True)
    head = "".join(f'<th scope="col"{_TEXT if text else ""}>{escape(header)}</th>' for header, text in columns)
    body = "\n".join(_row(row, emphasised=at in marked) for at, row in enumerate(rows))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def script_json(data: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def _row(cells: Sequence[Cell], *, emphasised: bool) -> str:
    first, *others = cells
    opening = '<tr class="marked">' if emphasised else "<tr>"
    return f'{opening}<th scope="row">{_text(first)}</th>{"".join(map(_cell, others))}</tr>'


def _cell(value: Cell) -> str:
    return f"<td{_TEXT if isinstance(value, str) else ''}>{_text(value)}</td>"


def _text(value: Cell) -> str:
    return escape(value if isinstance(value, str) else number(value))


def plot(label: str, caption: str) -> str:
    """The place of a page's figure, described for those who do not see it."""
    return (
        f'<figure>\n<div id="plot" class="plot" role="img" aria-label="{escape(label)}"></div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


def page(title: str, body: Sequence[str], figure: Mapping[str, Any]) -> str:
    """A whole page with one figure. It loads nothing from anywhere: plotly.js is inside, its policy forbids requests.

    Args:
        body: HTML; one part is `plot`.
        figure: {"data", "layout"} of plotly.
    """
    template = Template(files("analysis.report").joinpath("template.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(title), body="\n".join(body), plotly=get_plotlyjs(), figure=script_json(figure)
    )
