"""One thread at a time reads, builds or saves a model.

transformers and peft change global state meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Read, build or save a model in the block, or in the decorated function.

    Other threads wait, and no bar is shown.

    While transformers builds a model, it replaces torch's default type and functions of torch and
    of all models, and sets them back afterwards. Of two threads at once, the second one would set
    back the replacements of the first one, for good: every later model of the process would lack
    its tied weights.

    A progress bar of transformers would break up the output of commands for a second's work.
    """
    from transformers.utils import logging

    with _LOCK:
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                logging.enable_progress_bar()
