"""A notebook as a Markdown page.

Its links are checked as those of every page, and nothing is loaded to show it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_SHELL = re.compile(r"%%(sh|bash)\n")
"""The first line of a cell of commands."""
_TERMINAL = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
"""Colours that a program prints for a terminal."""
_STYLE = re.compile(r"<style.*?</style>|(?<=<table)[^>]*", re.DOTALL)
"""How pandas draws a table. Without it the site's own style applies."""


def as_markdown(notebook: str) -> str:
    """Return the page of a notebook.

    Args:
        notebook: the content of the .ipynb file.

    Returns:
        The text of its cells: Markdown as it is, code as Python blocks, and outputs as text, tables
        or pictures.
    """
    return (
        "\n\n".join(part for cell in json.loads(notebook)["cells"] for part in _cell(cell)) + "\n"
    )


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    text = _joined(cell["source"])
    if cell["cell_type"] == "markdown":
        yield text
    elif cell["cell_type"] == "code" and text:
        shell = _SHELL.match(text)
        yield f"````bash\n{text[shell.end() :]}\n````" if shell else f"````python\n{text}\n````"
        for output in cell["outputs"]:
            yield from _output(output)


def _output(output: dict[str, Any]) -> Iterator[str]:
    """Return one output in the richest form that a page without scripts can show."""
    data = output.get("data", {})
    if "image/png" in data:
        yield f"![Output of the cell above](data:image/png;base64,{_joined(data['image/png']).replace(chr(10), '')})"
    elif "image/svg+xml" in data:
        yield _joined(data["image/svg+xml"])
    elif "<table" in (html := _joined(data.get("text/html", ""))) and "<script" not in html:
        lines = (line.strip() for line in _STYLE.sub("", html).splitlines())
        yield "".join(lines)  # a blank line would end the block of HTML
    elif "text/markdown" in data:
        yield _joined(data["text/markdown"])
    elif text := _joined(output.get("text", data.get("text/plain", ""))):
        yield f"````text\n{_TERMINAL.sub('', text).rstrip()}\n````"


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
