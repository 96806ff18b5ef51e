"""The records of the logger `raydp`, as commands show them on stderr.

Modules of raydp log to `logging.getLogger(__name__)`, below the logger `raydp`, and configure
nothing: a program that uses raydp decides what becomes of the records. Only the command shows them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from raydp.system.output import stderr

LOGGER = logging.getLogger("raydp")


class ConsoleHandler(logging.Handler):
    """Prints records on stderr: a message as it is, and a warning as a warning.

    Attributes:
        verbose: whether each line has the time and the module.
    """

    verbose = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        text = f"{level}{self.format(record)}"
        if self.verbose:
            clock = f"{time.strftime('%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03d}"
            text = f"{clock} {record.name.removeprefix('raydp.')}: {text}"
        stderr.print(text, style="dim" if record.levelno < logging.INFO else None, markup=False)


_handler = ConsoleHandler()


@contextmanager
def shown_records() -> Iterator[None]:
    """Show the records on stderr during the block, and whatever else stderr is told after it."""
    LOGGER.addHandler(_handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        # A program may call commands several times, so everything is restored.
        LOGGER.removeHandler(_handler)
        LOGGER.setLevel(logging.NOTSET)
        _handler.verbose = stderr.quiet = False


def be_verbose() -> None:
    """Show the records for debugging too, with their times.

    Raises:
        ValueError: the command is quiet.
    """
    _refuse_both(stderr.quiet)
    _handler.verbose = True
    LOGGER.setLevel(logging.DEBUG)


def is_verbose() -> bool:
    """Return whether the command shows the records for debugging."""
    return _handler.verbose


def be_quiet() -> None:
    """Print nothing but results and errors: no progress, no warnings.

    Raises:
        ValueError: the command is verbose.
    """
    _refuse_both(_handler.verbose)
    stderr.quiet = True


def _refuse_both(other: bool) -> None:
    if other:
        raise ValueError("--verbose must not go with --quiet, got both. Remove one.")
