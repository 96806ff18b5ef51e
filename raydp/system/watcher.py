"""A process beside a driver while Ray starts, which ends a driver that hangs.

It also prints a text if the driver ended without one.

Ray's code in C++ waits for a frozen process without letting Python run, or ends the driver without
a word. A signal is still written to a pipe then. This file imports nothing but the standard
library, and is the process:

    python -I -S watcher.py SECONDS TEXT
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DONE = b"\0"
GRACE_SECONDS = 4.0
"""Time that Python has to end the driver after a signal."""


@contextmanager
def watched(seconds: float, text: str) -> Iterator[None]:
    """Say a text if this process ends in the block.

    Kill it if the block takes longer, or some time after a signal.
    """
    # -I and -S leave out site packages: the watcher starts in milliseconds and runs nothing of the
    # user.
    command = [sys.executable, "-I", "-S", __file__, str(seconds), text]
    # The watcher has a session of its own, so that Ctrl-C does not reach it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as watcher:
        assert watcher.stdin is not None
        pipe = watcher.stdin.fileno()
        # The pipe must not block: Python writes to it in a signal handler.
        os.set_blocking(pipe, False)
        # Only the main thread may set the descriptor that signals are written to.
        main = threading.current_thread() is threading.main_thread()
        before = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False) if main else -1
        try:
            yield
        finally:
            if main:
                signal.set_wakeup_fd(before)
            with suppress(BrokenPipeError):  # the watcher was killed
                os.write(pipe, DONE)


def watch(seconds: float, text: str) -> None:
    """Read the driver's pipe until the driver is done, has ended, or must be killed."""
    deadline, driver = time.monotonic() + seconds, os.getppid()
    while select.select([0], [], [], max(0.0, deadline - time.monotonic()))[0]:
        # Each signal is a byte with its number; the end of the pipe is the end of the driver.
        written = os.read(0, 64)
        if DONE in written:
            return
        if not written:
            break
        # Give Python a moment to end the driver by itself.
        if {signal.SIGINT, signal.SIGTERM}.intersection(written):
            deadline, text = min(deadline, time.monotonic() + GRACE_SECONDS), "interrupted"
    else:
        os.kill(driver, signal.SIGKILL)
    clear = "\r\x1b[K\x1b[?25h" if os.isatty(2) else ""  # a status line may have hidden the cursor
    os.write(2, f"{clear}{text}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a scheduler sends it to all processes of a job
    watch(float(sys.argv[1]), sys.argv[2])
