"""Several writes to a SQLite store in one transaction.

MLflow commits each call of its client for itself. A trial takes some twenty calls, and most of
their time is spent on transactions: on a file they are also waits for the disk. Behind a server,
every call is a request and stays one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

_PRAGMAS = ("foreign_keys = ON", "busy_timeout = 20000", "case_sensitive_like = true")
"""The pragmas that MLflow sets in every session on SQLite (mlflow.store.db.utils).

Inside a transaction they have no effect.
"""


def has_transactions(client: MlflowClient) -> bool:
    """Return whether `one_transaction` joins this client's calls: its store is a SQLite file."""
    return bool(_sql_stores(client))


@contextmanager
def one_transaction(client: MlflowClient) -> Iterator[None]:
    """Commit all that this thread writes in the block at its end, or nothing if the block raises.

    After a call that MLflow has rolled back by itself, every further call raises MlflowException.
    Other threads keep their own transactions. Behind a server the block changes nothing. Blocks
    must not be nested.

    Raises:
        MlflowException: the file could not be written, with the code that MLflow itself has for
            this.
    """
    stores = _sql_stores(client)
    if not stores:
        yield
        return
    import sqlalchemy.orm
    from mlflow.store.db.utils import _get_managed_session_maker

    url = str(stores[0].engine.url)
    # Once for each store: route its sessions through a maker that knows this thread's transaction.
    for store in stores:
        if not isinstance(store.ManagedSessionMaker, _Routed):
            store.ManagedSessionMaker = _Routed(url, store.ManagedSessionMaker)
    try:
        with stores[0].engine.connect() as connection:
            for pragma in _PRAGMAS:
                connection.execute(sqlalchemy.text(f"PRAGMA {pragma}"))
            connection.commit()
            # "rollback_only": MLflow's own commits in a session do not end the outer transaction.
            sessions = sqlalchemy.orm.sessionmaker(
                bind=connection, join_transaction_mode="rollback_only"
            )
            joined = _get_managed_session_maker(sessions, "set up already")  # type: ignore[no-untyped-call]
            with connection.begin(), _joining(url, joined):
                yield
    except (
        sqlalchemy.exc.OperationalError
    ) as error:  # at the end of the transaction; within it MLflow translates
        raise MlflowException(str(error), error_code=TEMPORARILY_UNAVAILABLE) from error


@dataclass
class _Joined(threading.local):
    """The makers of sessions that this thread uses now: address of a store -> maker."""

    makers: dict[str, Any] = field(default_factory=dict)


_JOINED = _Joined()


@dataclass(frozen=True)
class _Routed:
    """Makes a store's sessions: the thread's transaction, or MLflow's own with their options."""

    url: str
    original: Any

    def __call__(self, **options: bool) -> AbstractContextManager[Any]:
        maker = _JOINED.makers.get(self.url, self.original)
        session: AbstractContextManager[Any] = maker(**options)
        return session


@contextmanager
def _joining(url: str, maker: Any) -> Iterator[None]:
    """Let this thread's calls of MLflow's stores take their sessions from `maker`."""
    assert url not in _JOINED.makers, "blocks are not nested"
    _JOINED.makers[url] = maker
    try:
        yield
    finally:
        del _JOINED.makers[url]


def _sql_stores(client: MlflowClient) -> list[Any]:
    """Return MLflow's tracking store and registry if both write to one SQLite file, else []."""
    registry = client._get_registry_client()  # type: ignore[no-untyped-call]
    stores = [client._tracking_client.store, registry.store]
    urls = {str(getattr(getattr(store, "engine", None), "url", "")) for store in stores}
    return stores if len(urls) == 1 and urls.pop().startswith("sqlite") else []
