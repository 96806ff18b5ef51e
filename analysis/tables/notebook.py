"""Display of results in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def html_table(values: Mapping[str, object], caption: str) -> str:
    """Return a table of names and values, which are shown by their own HTML if they have it."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{_cell(value)}</td></tr>" for name, value in values.items()
    )
    return f"<table><caption>{escape(caption)}</caption>{rows}</table>"


def _cell(value: object) -> str:
    own = getattr(value, "_repr_html_", None)
    return own() if own is not None else escape(str(value))
