"""Delivery to a server that may be away: an attempt ends soon, and the next one resumes it.

MLflow itself repeats every request for minutes, even a request whose answer was lost after it took
effect. A model version would then be made twice. Here a request is made once. A failed write is
repeated from its beginning, which first looks for the results of an earlier attempt
(`TrialWriter`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mlflow.exceptions import MlflowException
from requests import RequestException

from raydp.tracking.address import UnreachableError
from raydp.tracking.tracker import NotDeliveredError

ANSWER_SECONDS = 60
"""A server that is silent for this time in one request is away. A large upload may need it."""
_AWAY = {
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "ABORTED",
    "CANCELLED",
    "CUSTOMER_UNAUTHORIZED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "ENDPOINT_NOT_FOUND",
}
"""MLflow's error codes for a server, database or login that is temporarily away.

Other codes are errors of our own.
"""
_ONCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": str(ANSWER_SECONDS)}

_LOCK = threading.Lock()
_before: dict[str, str | None] = {}
_depth = 0
"""Number of blocks of `delivering` that are open, in all threads."""


@contextmanager
def delivering() -> Iterator[None]:
    """Make each request once, and distinguish a store that is away from an error of our own.

    Raises:
        NotDeliveredError: there is no connection, no answer in time, or an answer that the server
            cannot work now.
    """
    _enter()
    try:
        with answering():
            yield
    except UnreachableError as error:
        raise NotDeliveredError(str(error)) from error
    finally:
        _leave()


@contextmanager
def answering() -> Iterator[None]:
    """Say in one sentence that a store is away, locked, damaged or no store of MLflow.

    Raises:
        UnreachableError: the message has the first line of the cause.
    """
    try:
        yield
    except UnreachableError:
        raise
    except Exception as error:
        # MLflow raises the errors of four libraries, so everything is caught, and what is not a
        # store that is away is raised again.
        if not _is_away(error):
            raise
        raise UnreachableError(
            f"tracking.uri must be an MLflow store that answers, got {_first_line(error)}. If it "
            "is locked or being restarted, try again; if it is damaged, restore a copy; if it is "
            "no MLflow, correct the address."
        ) from error


def _enter() -> None:
    """Set MLflow's number of attempts, by the variables that it reads for every request."""
    global _depth
    with _LOCK:
        # Environment variables are global, so the first block saves them and the last one restores
        # them.
        if _depth == 0:
            _before.update({name: os.environ.get(name) for name in _ONCE})
            os.environ.update(_ONCE)
        _depth += 1


def _leave() -> None:
    """Set the variables back when the last of the threads' blocks has ended."""
    global _depth
    with _LOCK:
        _depth -= 1
        for name, value in _before.items() if _depth == 0 else ():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_away(error: BaseException | None) -> bool:
    """Return whether an error or a cause, which MLflow may mislabel, is that the store is away."""
    # Servers do without these two libraries.
    from alembic.util import CommandError
    from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError

    # MLflow wraps causes: look down the whole chain.
    while error is not None:
        if isinstance(error, RequestException | ConnectionError | TimeoutError | CommandError):
            return True
        # Errors of the data or of a statement are our own.
        if isinstance(error, DBAPIError) and not isinstance(
            error, IntegrityError | DataError | ProgrammingError
        ):
            return True  # such as a file that is locked or damaged
        if isinstance(error, MlflowException) and error.error_code in _AWAY:
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: Exception) -> str:
    """Return the cause in one short line: MLflow quotes addresses and page-long answers."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
