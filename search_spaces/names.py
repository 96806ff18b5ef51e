"""The message for a misspelt name, for the rooms that do not import `raydp`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(field: str, name: str, known: Iterable[str]) -> str:
    """Name the nearest known name, then all of them."""
    options = sorted(known)
    nearest = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"{field} {name!r} is unknown.{hint} Known: {', '.join(options)}."
