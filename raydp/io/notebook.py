"""Text that a notebook's cell shows in place of the text before. It needs no widgets."""

from __future__ import annotations

import html
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def in_notebook() -> bool:
    """Return whether the process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


@contextmanager
def without_advice_on_widgets() -> Iterator[None]:
    """Leave out what tqdm and Ray say about missing widgets when a notebook imports them."""
    # Ray remarks on INFO at its import; its other records stay.
    ray_logger = logging.getLogger("ray.widgets.util")
    level = ray_logger.level
    ray_logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")
            yield
    finally:
        ray_logger.setLevel(level)


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
