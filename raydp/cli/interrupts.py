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

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

GRACE_SECONDS = 1.0
"""Time that Python has to end the command. Python cannot end it during a library call in C, such as a composition."""
LONG_SECONDS = 8.0
AGAIN_SECONDS = 0.1
"""Time after which a lost interruption is raised again. The callback that lost it has returned by then."""


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
    """Wait for Ctrl-C, SIGTERM or the end of the block, and end the process if Python does not."""
    while signals := os.read(pipe, 64):
        if {signal.SIGINT, signal.SIGTERM}.intersection(signals) and not done.wait(GRACE_SECONDS):
            for child in multiprocessing.active_children():
                child.kill()
            clear = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""  # a status line may have hidden the cursor
            os.write(2, f"{clear}interrupted\n".encode())
            os._exit(1)
    os.close(pipe)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM act as Ctrl-C, and raise a KeyboardInterrupt again that Python prints and forgets.

    Python ignores an exception in a destructor or in the callback of a weak reference, which the garbage collector
    calls at any time. A scheduler sends SIGTERM once, so a command that loses it would go on until it is killed.
    """
    before, timers = sys.unraisablehook, list[threading.Timer]()
    main = threading.current_thread() is threading.main_thread()
    on_sigterm = signal.signal(signal.SIGTERM, signal.default_int_handler) if main else None

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
    """Interrupt the main thread by a signal that has a handler. A shell starts background commands without SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(signal.getsignal(number)):
            signal.pthread_kill(threading.main_thread().ident or 0, number)  # ends a system call, too
            return
