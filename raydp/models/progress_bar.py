"""Switch transformers' progress bar off while models are loaded and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Hide transformers' progress bar for the block. It would break up the output of commands for a second's work."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
