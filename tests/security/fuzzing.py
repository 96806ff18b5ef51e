"""What both fuzz tests share: how an answer must look, and how long a test may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

FUZZ_SECONDS = 40.0
"""After so long a test draws no more: a slow machine sees fewer examples, not a failure."""

ONE_SECONDS = 30.0
"""No single input may take so long: the slowest takes under a second on a machine that does nothing
else."""


def fuzzed(max_examples: int) -> Callable[[Any], Any]:
    """The same examples each time, no deadline for one: the machine may be busy."""
    return settings(
        max_examples=max_examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Clock:
    """Time that a test has left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end


def assert_answers(code: int, out: str, err: str, what: object) -> None:
    """It worked, or said what to change."""
    assert code in (0, 2), (code, err, what)
    assert "Traceback" not in out + err, what
    if code == 2:
        assert err.startswith(("error: ", "Usage:")) or "error: " in err, (err, what)
        assert len(err) > 20, (err, what)
        assert len(err) < 20_000, (len(err), what)
