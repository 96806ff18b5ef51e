"""transformers' own progress bar, switched off while models are loaded and saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_progress_bar() -> Iterator[None]:
    """Loading and saving take a second or two; transformers' bar would break up the output of commands."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
