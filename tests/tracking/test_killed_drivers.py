"""Wherever a driver dies while it writes a trial, one run, one logged model and one version are
left in the end."""

import contextlib
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from raydp.tracking import NotDeliveredError, check_store, trials
from raydp.tracking.address import open_to_read
from raydp.tracking.transactions import one_transaction
from raydp.tracking.trials import MODEL_URI_TAG, TrialWriter
from tests.marks import slow_after

from .conftest import inventory, open_tracker

CUTS = {  # where a driver dies: owner, method, whether before it starts or right after it ends
    "run created": (TrialWriter, "_create", "after"),
    "some files uploaded": (MlflowClient, "log_model_artifacts", "before"),
    "all files uploaded": (MlflowClient, "finalize_logged_model", "before"),
    "model logged": (MlflowClient, "finalize_logged_model", "after"),
    "model linked to run": (MlflowClient, "log_outputs", "after"),
    "values logged": (TrialWriter, "_log_values", "after"),
    "registered": (TrialWriter, "_register", "after"),
    "marked complete": (TrialWriter, "_end", "before"),
    "ended": (TrialWriter, "_end", "after"),
}
COMPLETE = ("marked complete", "ended")
FILES = {
    "adapter_config.json", "adapter_model.safetensors", "privacy.json", "base.json", "MLmodel", "seal.json",
    "raydp_standalone.py", "raydp_plain.py",
}  # fmt: skip


def _die(uri, trial, cut, joined):
    """A driver that is killed at one point of writing a trial."""
    if not joined:
        trials.one_transaction = nullcontext
    owner, name, when = CUTS[cut]
    method = getattr(owner, name)

    def killed(self, *args, **kwargs):
        if when == "after":
            method(self, *args, **kwargs)
        os._exit(9)

    setattr(owner, name, killed)
    open_tracker(uri).log_trial(trial)


def _kill(uri, trial, cut, joined=False):
    process = multiprocessing.get_context("fork").Process(
        target=_die, args=(uri, trial, cut, joined)
    )
    process.start()
    process.join()
    assert process.exitcode == 9


@pytest.mark.parametrize(
    "changed", slow_after(1, [False, True]), ids=["same record", "trained again"]
)
@pytest.mark.parametrize(
    "joined", slow_after(1, [False, True]), ids=["call by call", "in transactions"]
)
@pytest.mark.parametrize("cut", slow_after(5, CUTS))
def test_a_killed_driver_leaves_one_run_and_one_version(uri, record, cut, joined, changed):
    """Killed anywhere, then resumed with the same result or with another one (a retrained
    trial)."""
    _kill(uri, record(), cut, joined)
    trial = record(metrics={"utility_loss": 2.25, "score.vmr": 0.5}) if changed else record()
    tracker = open_tracker(uri)
    model_uri = tracker.log_trial(trial)
    (run,), (model,), (version,) = inventory(tracker)
    assert model_uri == f"models:/demo/{version.version}" == run.data.tags[MODEL_URI_TAG]
    assert run.info.status == "FINISHED"
    assert version.run_id == run.info.run_id == model.source_run_id
    assert version.tags["model_id"] == model.model_id
    assert str(model.status) == "READY"
    folder = Path(model.artifact_location.removeprefix("file://"))
    assert {p.name for p in folder.rglob("*") if p.is_file()} == FILES
    assert len(tracker.store.client.get_metric_history(run.info.run_id, "grad_norm")) == 5
    complete = cut in COMPLETE and not joined  # a transaction is complete at its end
    metrics = (
        record().metrics if complete else trial.metrics
    )  # once complete, the first result stands
    assert {k: run.data.metrics.get(k) for k in record().metrics} == {
        k: metrics.get(k) for k in record().metrics
    }
    assert metrics.items() <= {m.key: m.value for m in model.metrics}.items()
    assert len(model.metrics) == len({m.key for m in model.metrics})


def test_writes_after_the_files_are_one_transaction(uri, record):
    """A driver that dies between two of these calls leaves a run and a model without files, and no
    version."""
    _kill(uri, record(), "registered", joined=True)
    (run,), (model,), versions = inventory(open_tracker(uri))
    assert (run.info.status, run.data.metrics, list(versions)) == ("RUNNING", {}, [])
    assert (str(model.status), model.metrics or []) == ("PENDING", [])


def test_a_trial_is_written_in_few_transactions(tracker, record):
    """One before the model's files and one after them.

    The registry's connection writes nothing of its own.
    """
    tracker.log_trial(record("run-1"))  # the registered model is new
    client, transactions = tracker.store.client, []
    for store in (client._tracking_client.store, client._get_registry_client().store):
        event.listen(
            store.engine,
            "before_cursor_execute",
            lambda connection, cursor, statement, *_: (
                transactions.append(connection.get_transaction())  # kept: no other gets its id
                if statement.split()[0] in ("INSERT", "UPDATE", "DELETE")
                else None
            ),
        )
    tracker.log_trial(record("run-2"))
    assert len(transactions) > 10, "writes"
    assert len(set(map(id, transactions))) == 2


def test_others_write_to_the_file_meanwhile(tracker, record):
    """A second thread is not drawn into the transaction, and waits until it ends."""
    client, written = tracker.store.client, []
    experiment = client.get_experiment_by_name("experiment").experiment_id

    def write():
        written.append(client.create_run(experiment).info.run_id)

    thread = threading.Thread(target=write)
    with contextlib.suppress(ZeroDivisionError), one_transaction(client):
        mine = client.create_run(experiment).info.run_id
        thread.start()
        thread.join(0.2)
        assert not written, "the file is locked"
        raise ZeroDivisionError
    thread.join()
    ids = {run.info.run_id for run in client.search_runs([experiment])}
    assert written[0] in ids
    assert mine not in ids


def test_two_threads_write_trials_at_the_same_time(tracker, record):
    """Each in its own transactions. One waits for the other."""
    written, threads = [], []
    for number in range(4):
        trial = record(f"run-{number}")
        threads.append(
            threading.Thread(target=lambda trial=trial: written.append(tracker.log_trial(trial)))
        )
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs, models, versions = inventory(tracker)
    assert len(set(written)) == len(runs) == len(models) == len(versions) == 4


def test_a_file_that_cannot_be_written_at_the_end_of_a_transaction_is_away(
    tracker, record, monkeypatch
):
    """As with MLflow's own transactions: what was not delivered waits, and nothing is
    half-written."""
    tracker.log_trial(record("run-1"))
    engine = tracker.store.client._tracking_client.store.engine

    def full(connection):
        raise OperationalError("COMMIT", {}, sqlite3.OperationalError("database or disk is full"))

    with monkeypatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", full)
        with pytest.raises(NotDeliveredError):
            tracker.log_trial(record("run-2"))
    assert tracker.log_trial(record("run-2")) == "models:/demo/2"
    assert [len(found) for found in inventory(tracker)] == [2, 2, 2]


def test_a_registered_model_that_was_deleted_is_made_again(tracker, record):
    tracker.log_trial(record("run-1"))
    client = tracker.store.client
    client.delete_registered_model("demo")
    assert tracker.log_trial(record("run-2")) == "models:/demo/1"
    runs, models, versions = inventory(tracker)
    assert (len(runs), len(models), len(versions)) == (2, 2, 1)


def test_a_driver_killed_between_run_and_model_metrics_completes_them(tracker, record, monkeypatch):
    """MLflow writes a run's metrics and a model's in two transactions."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SqlAlchemyStore, "_log_model_metrics", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tracker.log_trial(record())
    tracker.log_trial(record())
    (run,), (model,), (_version,) = inventory(tracker)
    assert {m.key for m in model.metrics} == {
        *record().metrics,
        "epsilon",
        "delta",
        "noise_multiplier",
        "seconds",
    }
    assert len(tracker.store.client.get_metric_history(run.info.run_id, "score.vmr")) == 1


def test_a_trial_with_very_many_metrics_is_completed(uri, record):
    """Beyond 100, MLflow itself trips over a model's repeated metrics."""
    metrics = {f"score.vmr.part{i}": i / 200 for i in range(200)}
    _kill(uri, record(metrics=metrics), "values logged")
    tracker = open_tracker(uri)
    tracker.log_trial(record(metrics=metrics))
    (run,), (model,), (_version,) = inventory(tracker)
    assert metrics.items() <= run.data.metrics.items()
    assert metrics.items() <= {m.key: m.value for m in model.metrics}.items()


def test_a_failure_removes_the_versions_of_a_half_written_trial(uri, record):
    _kill(uri, record(), "registered")
    tracker = open_tracker(uri)
    tracker.fail_trial("run-0", "gave up")
    (run,), models, versions = inventory(tracker)
    assert (run.info.status, list(models), list(versions)) == ("FAILED", [], [])


def test_a_replaced_run_is_deleted_not_hidden(uri, record):
    _kill(uri, record(), "values logged")
    tracker = open_tracker(uri)
    tracker.log_trial(record(seconds=1.0))
    client = tracker.store.client
    experiment = client.get_experiment_by_name("experiment").experiment_id
    deleted = client.search_runs([experiment], run_view_type=ViewType.DELETED_ONLY)
    assert len(deleted) == 1


UNFINISHED = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
connection.execute("BEGIN")
connection.execute("CREATE TABLE filler (text)")
connection.executemany("INSERT INTO filler VALUES (?)", [("x" * 4000,)] * 50)
os._exit(9)
"""


def test_store_is_read_after_writer_died_in_transaction(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    uri = f"sqlite:///{database}"
    open_tracker(uri)
    before = database.stat().st_size
    subprocess.run([sys.executable, "-c", UNFINISHED, database], check=False)
    assert Path(f"{database}-journal").stat().st_size > 0, "a journal is left"
    assert database.stat().st_size > before, "pages of the transaction are in the file"
    with closing(open_to_read(database)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "experiments" in tables
    assert "filler" not in tables
    check_store(uri)
