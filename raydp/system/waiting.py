"""Waits that a file or a pipe is told of: a long phase says so, and again with its time.

A terminal shows a status line instead. The innermost phase speaks, and the outer ones are silent
meanwhile.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

SILENT_SECONDS = 2.0
"""How long a phase may last before its line is printed."""
AGAIN_SECONDS = 10.0
"""Time without a line after which the current phase is printed again, with its time.

After a minute it is tripled.
"""
TICK_SECONDS = 0.2


@dataclass(eq=False, kw_only=True)
class Phase:
    """Something that is waited for.

    Attributes:
        text: returns what is done at the moment, or "" for a phase that prints lines of its own.
        show: prints a line.
        between: whether the phase is the time between its inner phases, so that each of them begins
            its wait anew.
        began: when the phase began, in seconds of the clock.
        named: when the wait that the text names began: the time shown counts from then.
        since: when the text last became another, or the last inner phase ended.
        seen: the text at that time, without its numbers; None before it was looked at.
        said: the text that was printed last, without its numbers; None before the first line.
    """

    text: Callable[[], str]
    show: Callable[[str], None]
    between: bool
    began: float
    named: float
    since: float
    seen: str | None
    said: str | None


class Waits:
    """The phases that have not ended, the innermost last.

    Args:
        clock: returns the time in seconds.
        thread: whether a thread speaks while there are phases.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, thread: bool = True) -> None:
        self._clock, self._has_thread = clock, thread
        self._phases = list[Phase]()
        self._last_line = clock()
        self._thread: threading.Thread | None = None

    def printed(self) -> None:
        """Note that a line was printed, whoever printed it."""
        self._last_line = self._clock()

    def begin(
        self,
        text: Callable[[], str],
        show: Callable[[str], None],
        *,
        said: bool = False,
        between: bool = False,
    ) -> Phase:
        """Begin a phase; see `Phase`.

        Args:
            said: whether its first line was printed.
        """
        now, kind = self._clock(), _kind(text()) if said else None
        phase = Phase(
            text=text,
            show=show,
            between=between,
            began=now,
            named=now,
            since=now,
            seen=kind,
            said=kind,
        )
        self._phases.append(phase)
        # One thread serves all phases and ends with them. A daemon does not keep the process alive.
        if self._has_thread and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._speak_on, daemon=True)
            self._thread.start()
        return phase

    def end(self, phase: Phase) -> float:
        """End a phase, and return how long it was, in seconds."""
        # Phases may end out of order, when a block is left by an exception.
        self._phases.remove(phase)
        now = self._clock()
        # Outer phases were silent meanwhile, so their waits begin anew.
        for outer in self._phases:
            outer.since = now
            outer.named = now if outer.between else outer.named
        return now - phase.began

    def speak(self) -> None:
        """Print the line that is due, if there is one."""
        # Only the innermost phase speaks.
        for phase in self._phases[-1:]:
            text, now = phase.text(), self._clock()
            # Another text, apart from its numbers, is another wait.
            if (kind := _kind(text)) != phase.seen:
                if phase.seen is not None:
                    phase.since = phase.named = now
                phase.seen = kind
            age, silent = now - phase.named, now - self._last_line
            # A new text is printed after a while, an old one again at intervals.
            is_new = kind != phase.said and min(now - phase.since, silent) >= SILENT_SECONDS
            if text and (is_new or silent >= again_seconds(age)):
                phase.said = kind
                with suppress(OSError, ValueError):  # the output was closed meanwhile
                    phase.show(text if age < AGAIN_SECONDS else f"{text} ({age:.0f} s)")
                self.printed()

    def _speak_on(self) -> None:
        while self._phases:
            time.sleep(TICK_SECONDS)
            self.speak()


def again_seconds(age: float) -> float:
    """Return the time without a line after which a wait of this age (seconds) has another line."""
    return AGAIN_SECONDS * (1 if age < 60 else 3)


def _kind(text: str) -> str:
    """Return a text without its numbers, such as the count of what is done."""
    return re.sub(r"\d+", "", text)


WAITS = Waits()
"""The phases of this process."""
