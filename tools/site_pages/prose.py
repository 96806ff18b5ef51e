"""Plain text of docstrings and help as Markdown."""

from __future__ import annotations

import re

_SPAN = re.compile(r"(`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_\[\]#|{}])")
_LABELLED = re.compile(r"(Guarantee|Source|Example|Note):\s+(.*)", re.DOTALL)


def escaped(text: str) -> str:
    """Return a text on one line in which only what stands between backticks is marked up."""
    line = " ".join(text.split())
    parts = _SPAN.split(line)
    return "".join(
        part.replace("|", "\\|") if at % 2 else _plain(part) for at, part in enumerate(parts)
    )


def _plain(text: str) -> str:
    return _SPECIAL.sub(
        r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    )


def paragraphs(docstring: str) -> str:
    """Return a docstring's paragraphs as Markdown.

    A labelled one, such as its source, has its label in bold.
    """
    made = []
    for paragraph in docstring.strip().split("\n\n"):
        labelled = _LABELLED.fullmatch(paragraph.strip())
        made.append(
            f"**{labelled[1]}.** {escaped(labelled[2])}" if labelled else escaped(paragraph)
        )
    return "\n\n".join(made)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table of cells that are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
