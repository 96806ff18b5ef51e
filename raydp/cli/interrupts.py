"""Commands that keep nothing: Ctrl-C ends them at once, and one that takes long says that it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_SECONDS = 1.0
"""How long Python has to end the command itself. It cannot while a library's call in C runs, such as a composition."""
LONG_SECONDS = 8.0


@contextmanager
def stoppable(what: str) -> Iterator[None]:
    """End the process soon after Ctrl-C, whatever runs; after some seconds say on stderr what takes long.

    Args:
        what: what the command does, for the sentence.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)  # written to by the signal itself, not by Python
    threading.Thread(target=_watch, args=(ours, done), daemon=True).start()
    timer = threading.Timer(LONG_SECONDS, _say, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        done.set()
        timer.cancel()
        signal.set_wakeup_fd(before)
        os.close(theirs)  # ends the thread


def _say(what: str) -> None:
    from raydp.io.output import stderr

    stderr.print(f"{what} takes longer than {LONG_SECONDS:g} s: many or large problems. Ctrl-C stops it.", markup=False)


def _watch(pipe: int, done: threading.Event) -> None:
    """Wait for Ctrl-C or the end of the block."""
    while signals := os.read(pipe, 64):
        if signal.SIGINT in signals and not done.wait(GRACE_SECONDS):
            for child in multiprocessing.active_children():
                child.kill()
            clear = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""  # a status line may have hidden the cursor
            os.write(2, f"{clear}interrupted\n".encode())
            os._exit(1)
    os.close(pipe)
