"""Text that a notebook's cell shows in place of the text before. It needs no widgets."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable
from typing import Any


def in_notebook() -> bool:
    """Return whether the process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def replaced_text() -> Callable[[str], None]:
    """Return a function that shows a text in the current cell, in place of the text before."""
    from IPython.display import display

    handle: Any = None

    def show(text: str) -> None:
        nonlocal handle
        # The text of a run is no HTML, so it is escaped.
        data = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
        if handle is None:
            handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            handle.update(data, raw=True)

    return show
