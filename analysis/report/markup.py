"""Pieces of an HTML page. Every text is escaped in this module and nowhere else."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

import plotly.graph_objects as go

Cell = str | int | float | None
Attributes = Mapping[str, str | int]
_TEXT = {"class": "text"}
_FIGURE = re.compile(r"([<>≤≥~±+−-]\s*)?(\.?\d|∞|inf\b)")
"""The beginning of a numeric cell. A sign or bound may precede, a unit or range may follow."""


def number(value: float | None) -> str:
    """Format a number with four significant digits, or as a dash if it is undefined."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def percent(share: float | None, digits: int = 0) -> str:
    """Format a share as a percentage, or as a dash if it is undefined."""
    return number(None) if share is None else f"{share:.{digits}%}".replace("%", " %")


def paragraph(text: str, *, css: str = "") -> str:
    """Return a paragraph of text."""
    return f"<p{_written({'class': css} if css else {})}>{_prose(text)}</p>"


def bullets(texts: Sequence[str], *, css: str = "") -> str:
    """Return a list of texts, or nothing if there are no texts."""
    attributes = _written({"class": css} if css else {})
    return (
        f"<ul{attributes}>{''.join(f'<li>{_prose(text)}</li>' for text in texts)}</ul>"
        if texts
        else ""
    )


def _prose(text: str) -> str:
    """Return a text whose parts between backticks are code."""
    # Escape first, so that a user's text can never become a tag.
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def section(heading: str, *parts: str, folded: bool = False) -> str:
    """Return a section of HTML parts with its heading, which a reader unfolds if it is folded."""
    start, end = ("<details><summary>", "</summary>") if folded else ("", "")
    body = chr(10).join(part for part in parts if part)
    return (
        f'<section id="{_anchor(heading)}">\n{start}<h2>{escape(heading)}</h2>{end}\n{body}\n'
        f"{'</details>' if folded else ''}</section>"
    )


def _anchor(heading: str) -> str:
    """Return the id of a section. The prefix keeps it apart from the names of figures."""
    return "section-" + re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return labels with their texts, as a card."""
    body = "\n".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(text)}</dd></div>" for label, text in rows
    )
    return f'<dl class="card">\n{body}\n</dl>'


def table(
    caption: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    marked: Collection[int] = (),
    of_row: Sequence[Attributes] | None = None,
    of_column: Mapping[int, Attributes] | None = None,
) -> str:
    """Return a table in its own box, which scrolls on narrow screens.

    The first cell of a row is the row's header.

    Args:
        caption: text above the table.
        headers: one per column.
        rows: at least one. A column aligns left if one of its cells is text, else right (see
            `_is_text`).
        marked: positions of rows to emphasise.
        of_row: attributes of each row, for scripts.
        of_column: column -> attributes of its cells, for scripts.
    """
    textual = [any(map(_is_text, cells)) for cells in zip(*rows, strict=True)]
    columns = zip(headers, textual, strict=True)
    head = "".join(
        f"<th{_written({'scope': 'col'} | (_TEXT if text else {}))}>{escape(header)}</th>"
        for header, text in columns
    )
    body = "\n".join(
        _row(
            row,
            textual,
            ({"class": "marked"} if at in marked else {}) | dict(of_row[at] if of_row else {}),
            of_column or {},
        )
        for at, row in enumerate(rows)
    )
    # The visible caption stands outside the scrolling box. Screen readers read the table's own.
    return (
        f'<p class="soft caption" aria-hidden="true">{escape(caption)}</p>\n'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">\n<table>\n'
        f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def script_json(data: object) -> str:
    """Return JSON that cannot end the script element that holds it."""
    # "</script" would end the element, and U+2028 ends a line in older JavaScript.
    return json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")


def plot(name: str, label: str, caption: str, *, css: str = "") -> str:
    """Return the placeholder of a figure, with a description for readers who cannot see it.

    Args:
        name: the figure's name in the `figures` argument of `page`.
        label: what the figure shows, in words.
        caption: text below the figure.
        css: "wide" if the figure scrolls on narrow screens, "tall" for more height.
    """
    # A box that scrolls must be reachable by the keyboard.
    focus: Attributes = (
        {"tabindex": 0, "role": "region", "aria-label": caption} if css == "wide" else {}
    )
    place: Attributes = {"id": name, "class": "plot", "role": "img", "aria-label": label}
    return (
        f"<figure{_written({'class': css} if css else {})}>\n"
        f'<div class="scroll"{_written(focus)}><div{_written(place)}></div></div>\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


def page(
    title: str,
    body: Sequence[str],
    figures: Mapping[str, go.Figure],
    live: Mapping[str, object] | None = None,
    parallel: Mapping[str, object] | None = None,
) -> str:
    """Return a whole page.

    It loads nothing: plotly.js is included, and the content policy forbids requests.

    Args:
        title: title of the page.
        body: parts of the page as HTML, with a `plot` placeholder for each figure.
        figures: name -> figure.
        live: data of the slider's script (see `raydp.analysis.report.threshold_slider`), None for a
            page without a slider.
        parallel: data of the parallel coordinates (see `raydp.analysis.report.parallel`), None for
            a page without them.
    """
    described = {name: _described(figure) for name, figure in figures.items()}
    data = {"figures": described, "live": live, "parallel": parallel}
    return filled(
        "template.html",
        {"title": title},
        style=_file("page.css"),
        body="\n".join(body),
        plotly=_file("plotly-basic.min.js"),
        told=script_json(data),
        script=_file("page.js"),
    )


def filled(name: str, texts: Mapping[str, object], **parts: str) -> str:
    """Return a template of this folder with texts, which are escaped, and with parts in HTML."""
    escaped = {key: escape(str(text)) for key, text in texts.items()}
    return Template(_file(name)).substitute(escaped, **parts)


def _file(name: str) -> str:
    """Read a file of this folder."""
    return files("raydp.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _described(figure: go.Figure) -> Mapping[str, object]:
    """Return a figure as data for plotly.js, without a template: the page sets the colours."""
    described: dict[str, dict[str, object]] = json.loads(figure.to_json())
    described["layout"].pop("template", None)
    return described


def _row(
    cells: Sequence[Cell],
    textual: Sequence[bool],
    attributes: Attributes,
    of_column: Mapping[int, Attributes],
) -> str:
    """Return a row. The first cell is its header."""
    written = []
    for at, (value, text) in enumerate(zip(cells, textual, strict=True)):
        own = (_TEXT if text else {}) | dict(of_column.get(at, {}))
        name, scope = ("td", {}) if at else ("th", {"scope": "row"})
        written.append(f"<{name}{_written(scope | own)}>{_text(value)}</{name}>")
    return f"<tr{_written(attributes)}>{''.join(written)}</tr>"


def _is_text(value: Cell) -> bool:
    """Return whether a cell is text. Numbers may have signs, bounds or units: "<0.1", "12%"."""
    return (
        isinstance(value, str) and value not in ("", number(None)) and _FIGURE.match(value) is None
    )


def _written(attributes: Attributes) -> str:
    """Return attributes as HTML."""
    return "".join(f' {name}="{escape(str(value))}"' for name, value in attributes.items())


def _text(value: Cell) -> str:
    return escape(value if isinstance(value, str) else number(value))
