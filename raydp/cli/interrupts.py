"""Ctrl-C for commands that keep no state: it ends them at once. Commands that take long tell so on stderr."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GRACE_SECONDS = 1.0
"""Time that Python has to end the command. Python cannot end it during a library call in C, such as a composition."""
LONG_SECONDS = 8.0


@contextmanager
def stoppable(what: str) -> Iterator[None]:
    """End the process soon after Ctrl-C, whatever code runs. After some seconds, tell on stderr what takes long.

    Args:
        what: the name of the activity, for the sentence.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    done = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)  # the signal itself writes, without Python
    threading.Thread(target=_watch, args=(read_end, done), daemon=True).start()
    timer = threading.Timer(LONG_SECONDS, _say, (what,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        done.set()
        timer.cancel()
        signal.set_wakeup_fd(before)
        os.close(write_end)  # ends the thread


def _say(what: str) -> None:
    from raydp.io.output import stderr

    stderr.print(f"{what} takes longer than {LONG_SECONDS:g} s. Ctrl-C stops it.", markup=False)


def _watch(pipe: int, done: threading.Event) -> None:
    """Wait for Ctrl-C or the end of the block, and end the process if Python does not."""
    while signals := os.read(pipe, 64):
        if signal.SIGINT in signals and not done.wait(GRACE_SECONDS):
            for child in multiprocessing.active_children():
                child.kill()
            clear = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""  # a status line may have hidden the cursor
            os.write(2, f"{clear}interrupted\n".encode())
            os._exit(1)
    os.close(pipe)
