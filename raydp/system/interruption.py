"""An interruption that carries what was there when it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, raised once what is on disk is in order, so that scripts stop too.

    Attributes:
        partial: what the interrupted call would have returned, with its field `interrupted` set.
    """

    def __init__(self, partial: Any) -> None:
        super().__init__("interrupted")
        self.partial = partial


def or_partial(call: Callable[[], T]) -> T:
    """Return the result of a call, or the partial result of a call that was interrupted."""
    try:
        return call()
    except Interrupted as stop:
        return cast(T, stop.partial)
