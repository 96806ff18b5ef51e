"""Work of Python's that is left out where large libraries are imported.

Python looks for unreachable objects again and again while libraries create objects that live as
long as the process, and finds nothing. When the process ends, Python takes all of them apart. For
`raydp plan` this was a third of the time.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

_owned = False
"""Whether this process runs a command of raydp: then no user's object can be frozen."""


@contextmanager
def own_process() -> Iterator[None]:
    """Say that this process runs a command of raydp alone, and end the process with it."""
    global _owned
    _owned = True
    try:
        yield
    except SystemExit as stop:
        if stop.code is not None and not isinstance(stop.code, int):
            raise  # Python prints a text
        _end(stop.code or 0)
        raise
    _end(0)


def _end(code: int) -> None:
    """End the process as multiprocessing does: exit functions run, and no object is taken apart."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are no daemons
    atexit._run_exitfuncs()
    try:
        # Flush here, because os._exit writes no buffers.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return  # Python says that the output is closed, and ends with its own code
    os._exit(code)


def imported(module: str, *, first: bool = False) -> ModuleType:
    """Import a module with its libraries, and search for no garbage meanwhile.

    In a command, and as the first work of a process, the libraries are frozen: no search looks at
    them later either. Freezing covers every object that exists. In a user's process it would keep
    the user's objects for ever, and in a worker what a training has left.

    Args:
        module: its full name.
        first: whether this is the first work of a process that raydp has started.
    """
    # A module that is loaded costs nothing; a user who switched the collector off keeps it off.
    if module in sys.modules or not gc.isenabled():
        return import_module(module)
    gc.disable()
    try:
        with _without_advice_on_widgets():
            return import_module(module)
    finally:
        # Objects that live as long as the process need never be searched.
        if first or _owned:
            gc.freeze()
        gc.enable()


@contextmanager
def _without_advice_on_widgets() -> Iterator[None]:
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
