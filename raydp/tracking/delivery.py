"""Writing to a server that may be away: an attempt ends soon, and says so, and the next one looks for what is there.

MLflow repeats every request by itself for minutes, also one whose answer was lost after it took effect: a model version
would then be made twice. Here a request is made once. What failed is written anew from its beginning, which first looks
for what an earlier attempt left (`TrialWriter`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from raydp.tracking.store import UnreachableError

ANSWER_SECONDS = 60
"""A server that is silent for so long in one request is away; a large upload may take it that long to pass on."""
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
_AWAY = {
    "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "DEADLINE_EXCEEDED", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED",
    "ABORTED", "CANCELLED", "CUSTOMER_UNAUTHORIZED", "UNAUTHENTICATED", "PERMISSION_DENIED", "ENDPOINT_NOT_FOUND",
}  # fmt: skip
"""Of MLflow's error codes those of a server, a database or a login that is not there now; others are ours to mend."""
_ONCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(ANSWER_SECONDS)}


class NotDeliveredError(ValueError):
    """The store was not there to be told; nothing is lost, and another attempt may follow.

    Where none does it is a wrong address or a server to be started: a message for the user, as every ValueError.
    """


@contextmanager
def delivering() -> Iterator[None]:
    """Make requests once, and tell a store that is away from a mistake of ours.

    Raises:
        NotDeliveredError: no connection, no answer in time, or one that says that the server cannot work now.
    """
    before = {name: os.environ.get(name) for name in _ONCE}
    os.environ.update(_ONCE)  # MLflow has no other way to say it, and reads it for every request
    try:
        yield
    except UnreachableError as error:
        raise NotDeliveredError(str(error)) from error
    except Exception as error:
        if _is_away(error):
            raise NotDeliveredError(_first_line(error)) from error
        raise
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@dataclass(kw_only=True)
class Pauses:
    """When to try again: at once, then after pauses that grow, so that a dead server holds up nobody."""

    _until: float = 0.0
    _next: float = FIRST_PAUSE_SECONDS

    def over(self) -> bool:
        """Whether an attempt is due."""
        return time.monotonic() >= self._until

    def failed(self) -> None:
        """Wait before the next attempt, twice as long as before it."""
        self._until = time.monotonic() + self._next
        self._next = min(2 * self._next, LONGEST_PAUSE_SECONDS)

    def succeeded(self) -> None:
        """The next failure is a first one again."""
        self._until, self._next = 0.0, FIRST_PAUSE_SECONDS


def _is_away(error: BaseException | None) -> bool:
    """Whether the store is away by this error or by one that it came of: MLflow names some causes wrongly."""
    from mlflow.exceptions import MlflowException
    from requests import RequestException

    while error is not None:
        if isinstance(error, RequestException | ConnectionError | TimeoutError):
            return True
        if isinstance(error, MlflowException) and error.error_code in _AWAY:
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: Exception) -> str:
    """The cause, short: MLflow's message quotes addresses and page-long answers."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
