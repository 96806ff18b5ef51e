"""Ctrl-C and SIGTERM: no command loses one, and a command that keeps no state ends at once.

Commands that take long tell so on stderr.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from raydp.system.output import stderr

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

GRACE_SECONDS = 1.0
"""Time that Python has to end the command.

Python cannot end it during a library call in C, such as a composition.
"""
LONG_SECONDS = 8.0
AGAIN_SECONDS = 0.1
"""Time after which a lost interruption is raised again: its callback has returned by then."""


@contextmanager
def stoppable(what: str) -> Iterator[None]:
    """End the process soon after Ctrl-C, whatever code runs.

    After some seconds, tell on stderr what takes long.

    Args:
        what: the name of the activity, for the sentence.
    """
    # Signals reach the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A pipe that the signal itself writes to, and a thread that reads it: Python code in the main
    # thread may not run for minutes.
    done = threading.Event()
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    # The signal itself writes, without Python.
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
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
    stderr.print(f"Still busy with {what} after {LONG_SECONDS:g} s. Ctrl-C stops it.", markup=False)


def _watch(pipe: int, done: threading.Event) -> None:
    """Wait for Ctrl-C, SIGTERM or the end of the block, and end the process if Python does not."""
    while signals := os.read(pipe, 64):
        # Python gets some time to end by itself, with its own clean-up.
        if {signal.SIGINT, signal.SIGTERM}.intersection(signals) and not done.wait(GRACE_SECONDS):
            # Workers would go on without their parent.
            for child in multiprocessing.active_children():
                child.kill()
            # A status line may have hidden the cursor.
            clear = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
            os.write(2, f"{clear}interrupted\n".encode())
            # No handlers and no clean-up: they could wait for the call that hangs.
            os._exit(1)
    os.close(pipe)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM act as Ctrl-C, and raise a KeyboardInterrupt again if Python forgets it.

    Python ignores an exception in a destructor or in the callback of a weak reference, which the
    garbage collector calls at any time. A scheduler sends SIGTERM once, so a command that loses it
    would go on until it is killed.
    """
    before, timers = sys.unraisablehook, list[threading.Timer]()
    main = threading.current_thread() is threading.main_thread()
    # The default handler of SIGTERM would end the process without any clean-up.
    on_sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None

    # Only the interruption is raised again, by a timer: here it would be lost once more.
    def hook(lost: UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            timers.append(threading.Timer(AGAIN_SECONDS, _interrupt))
            timers[-1].daemon = True
            timers[-1].start()
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before
        if main:
            signal.signal(signal.SIGTERM, on_sigterm)
        for timer in timers:
            timer.cancel()  # nothing is left to interrupt


def _interrupt() -> None:
    """Interrupt the main thread by a signal that has a handler.

    A shell starts background commands without SIGINT.
    """
    # The first one with a handler: an ignored SIGINT would do nothing.
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            # A signal to the main thread also ends its system call.
            signal.pthread_kill(threading.main_thread().ident or 0, number)
            return
