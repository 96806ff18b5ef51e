"""Several writes to a SQLite store in one transaction.

MLflow commits each call of its client for itself. A trial takes some twenty calls, and most of their time is spent on
transactions: on a file they are also waits for the disk. Behind a server, every call is a request and stays one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PRAGMAS = ("foreign_keys = ON", "busy_timeout = 20000", "case_sensitive_like = true")
"""What MLflow sets in every session on SQLite (mlflow.store.db.utils). Only outside of a transaction does it count."""


def has_transactions(client: MlflowClient) -> bool:
    """Return whether `one_transaction` joins the calls of this client: its store is a SQLite file."""
    return bool(_sql_stores(client))


@contextmanager
def one_transaction(client: MlflowClient) -> Iterator[None]:
    """Commit all that this thread writes in the block at its end, or nothing if the block raises.

    After a call that MLflow has rolled back by itself, every further call raises MlflowException. Other threads that
    use the store keep their own transactions. Behind a server the block changes nothing.
    """
    stores = _sql_stores(client)
    if not stores:
        yield
        return
    from mlflow.store.db.utils import _get_managed_session_maker
    from sqlalchemy import text
    from sqlalchemy.orm import sessionmaker

    with stores[0].engine.connect() as connection:
        for pragma in _PRAGMAS:
            connection.execute(text(f"PRAGMA {pragma}"))
        connection.commit()
        sessions = sessionmaker(bind=connection, join_transaction_mode="rollback_only")
        joined = _get_managed_session_maker(sessions, "set up already")  # type: ignore[no-untyped-call]
        with connection.begin(), _replaced(stores, joined):
            yield


@contextmanager
def _replaced(stores: list[Any], joined: Any) -> Iterator[None]:
    """Let this thread's calls of MLflow's stores take their sessions from `joined`."""
    own, before = threading.get_ident(), [store.ManagedSessionMaker for store in stores]

    def routed(original: Any) -> Any:
        def session(read_only: bool = True) -> AbstractContextManager[Any]:
            maker = joined if threading.get_ident() == own else original
            opened: AbstractContextManager[Any] = maker(read_only=read_only)
            return opened

        return session

    for store, original in zip(stores, before, strict=True):
        store.ManagedSessionMaker = routed(original)
    try:
        yield
    finally:
        for store, original in zip(stores, before, strict=True):
            store.ManagedSessionMaker = original


def _sql_stores(client: MlflowClient) -> list[Any]:
    """Return MLflow's tracking store and its registry if both write to the same SQLite file, else an empty list."""
    registry = client._get_registry_client()  # type: ignore[no-untyped-call]
    stores = [client._tracking_client.store, registry.store]
    urls = {str(getattr(getattr(store, "engine", None), "url", "")) for store in stores}
    return stores if len(urls) == 1 and urls.pop().startswith("sqlite") else []
