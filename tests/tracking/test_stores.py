"""A store is made without a word where its address says, and refused where that cannot work;
nothing global is set."""

import multiprocessing
import os
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from raydp.tracking import MLflowTracker, TrialRecord, find_models, promote_model, show_model
from raydp.tracking.address import check_store

from .conftest import inventory, open_tracker


def test_making_a_store_says_nothing(schema):
    assert schema[1] == []


def test_nothing_global_is_set(tracker, record, monkeypatch):
    import mlflow

    before = (
        mlflow.get_tracking_uri(),
        mlflow.get_registry_uri(),
        os.environ.get("MLFLOW_TRACKING_URI"),
    )
    tracker.log_trial(record())
    assert (
        mlflow.get_tracking_uri(),
        mlflow.get_registry_uri(),
        os.environ.get("MLFLOW_TRACKING_URI"),
    ) == before
    assert before[0] != tracker.store.uri
    assert mlflow.active_run() is None


def test_artifacts_lie_beside_the_database_wherever_one_works(uri, record, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    model_uri = open_tracker(uri).log_trial(record())
    find_models(uri)
    promote_model(model_uri, "privacy-preferred", "only one", tracking_uri=uri)
    show_model(model_uri, tracking_uri=uri)
    assert list(elsewhere.iterdir()) == [], "MLflow's default store was touched"
    assert list((tmp_path / "store" / "mlruns").rglob("adapter_model.safetensors"))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_store_that_is_made_is_its_owners_alone(schema, uri, record, tmp_path):
    """Losses, models and scores by secret lie there. A mode that somebody has set stays."""
    assert mode(schema[0]) == 0o600
    artifacts = tmp_path / "store" / "mlruns"
    before = os.umask(0)
    try:
        open_tracker(uri).log_trial(record())
    finally:
        os.umask(before)
    assert mode(artifacts) == 0o700
    artifacts.chmod(0o770)
    open_tracker(uri).log_trial(record("run-2", seed=1))
    assert mode(artifacts) == 0o770


def test_a_relative_address_is_fixed_when_the_store_is_opened(uri, record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "store")
    tracker = open_tracker("sqlite:///raydp.db")
    monkeypatch.chdir(tmp_path)
    tracker.log_trial(record())
    assert not (tmp_path / "raydp.db").exists()
    assert len(inventory(open_tracker(uri))[0]) == 1


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mlruns", "tracking.uri must be sqlite:///FILE or the http"),
        ("sqlite:///:memory:", "tracking.uri must be sqlite:///FILE"),
        ("http://127.0.0.1:9", "tracking.uri must be the address of a running MLflow server"),
    ],
)
def test_an_address_that_cannot_work_is_refused(address, message):
    with pytest.raises(ValueError, match=message):
        MLflowTracker(address, "experiment", "demo")


def test_names_that_mlflow_would_choke_on_are_refused(uri):
    with pytest.raises(ValueError, match=r"tracking\.registered_model must be letters"):
        MLflowTracker(uri, "experiment", "de/mo")


def test_a_deleted_experiment_is_refused(tracker):
    client = tracker.store.client
    client.delete_experiment(client.get_experiment_by_name("experiment").experiment_id)
    with pytest.raises(ValueError, match=r"tracking\.experiment must not be deleted"):
        MLflowTracker(tracker.store.uri, "experiment", "demo")


def _open(uri: str) -> None:
    MLflowTracker(uri, "experiment", "model")


@pytest.mark.slow
def test_processes_that_make_one_store_at_the_same_time_both_get_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/fresh.db"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_open, args=(uri,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    _open(uri)


def test_a_store_whose_schema_is_being_made_is_waited_for(tmp_path: Path) -> None:
    """MLflow makes its tables one by one; the other process holds the lock meanwhile."""
    database = tmp_path / "raydp.db"
    with closing(sqlite3.connect(database)) as half:
        half.execute("CREATE TABLE experiments (experiment_id INTEGER)")
        with ThreadPoolExecutor(1) as pool, FileLock(f"{database}.lock"):
            waiting = pool.submit(check_store, f"sqlite:///{database}")
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
            half.execute("CREATE TABLE alembic_version (version_num TEXT)")
            half.commit()
        assert waiting.result() is None


def _deliver(uri: str, sweep: str, trials: list[TrialRecord]) -> list[str]:
    tracker = open_tracker(uri, sweep=sweep)
    return [tracker.log_trial(trial) for trial in trials]


@pytest.mark.slow
def test_two_sweeps_on_one_file_lose_nothing(uri, record) -> None:
    """Their drivers share the experiment and the registered model, and train runs of the same
    identities."""
    sweeps = [(uri, f"sweep-{s}", [record(f"run-{t}", seed=s) for t in range(3)]) for s in range(2)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        uris = [uri for written in pool.starmap(_deliver, sweeps, chunksize=1) for uri in written]
    assert sorted(uris) == [f"models:/demo/{number}" for number in range(1, 7)]
    found = find_models(uri, verify=True).sort_values(["seed", "run_id"])
    assert list(zip(found.seed, found.run_id, strict=True)) == [
        (s, f"run-{t}") for s in range(2) for t in range(3)
    ]
    assert {len(kind) for kind in inventory(open_tracker(uri))} == {6}


@pytest.mark.parametrize("name", ["a%20b", "100%", "a?b", "a\nb", "a\x1bb"])
@pytest.mark.parametrize("uri", ["sqlite:///raydp.db", "sqlite:///sub/raydp.db"])
def test_a_path_that_sqlalchemy_would_read_otherwise_is_refused_at_once(
    name, uri, tmp_path, monkeypatch
) -> None:
    (tmp_path / name / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(
        ValueError, match=r"tracking\.uri must be a file whose absolute path holds no %"
    ):
        check_store(uri)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "it's #1 $(x) é").mkdir()
    check_store("sqlite:///it's #1 $(x) é/raydp.db")
