"""Wherever a driver dies while it writes a trial, one run, one logged model and one version are left in the end."""

import multiprocessing
import os
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from raydp.tracking.trials import MODEL_URI_TAG, TrialWriter
from tests.marks import slow_after

from .conftest import inventory, open_tracker

CUTS = {  # where a driver dies: owner, method, whether before it starts or right after it ends
    "run created": (TrialWriter, "_create", "after"),
    "some files uploaded": (MlflowClient, "log_model_artifacts", "before"),
    "all files uploaded": (MlflowClient, "finalize_logged_model", "before"),
    "model logged": (TrialWriter, "_log_model", "after"),
    "model linked to run": (MlflowClient, "log_outputs", "after"),
    "values logged": (TrialWriter, "_log_values", "after"),
    "registered": (TrialWriter, "_register", "after"),
    "marked complete": (TrialWriter, "_end", "before"),
    "ended": (TrialWriter, "_end", "after"),
}
COMPLETE = ("marked complete", "ended")
FILES = {"adapter_config.json", "adapter_model.safetensors", "privacy.json", "base.json", "MLmodel", "seal.json"}


def _die(uri, trial, cut):
    """A driver that is killed at one point of writing a trial."""
    owner, name, when = CUTS[cut]
    method = getattr(owner, name)

    def killed(self, *args, **kwargs):
        if when == "after":
            method(self, *args, **kwargs)
        os._exit(9)

    setattr(owner, name, killed)
    open_tracker(uri).log_trial(trial)


def _kill(uri, trial, cut):
    process = multiprocessing.get_context("fork").Process(target=_die, args=(uri, trial, cut))
    process.start()
    process.join()
    assert process.exitcode == 9


@pytest.mark.parametrize("changed", slow_after(1, [False, True]), ids=["same record", "trained again"])
@pytest.mark.parametrize("cut", slow_after(5, CUTS))
def test_a_killed_driver_leaves_one_run_and_one_version(uri, record, cut, changed):
    """Killed anywhere, then resumed with the same result or with another one (a retrained trial)."""
    _kill(uri, record(), cut)
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
    assert {p.name for p in folder.iterdir()} == FILES
    assert len(tracker.store.client.get_metric_history(run.info.run_id, "grad_norm")) == 5
    metrics = record().metrics if cut in COMPLETE else trial.metrics  # once complete, the first result stands
    assert {k: run.data.metrics.get(k) for k in record().metrics} == {k: metrics.get(k) for k in record().metrics}
    assert metrics.items() <= {m.key: m.value for m in model.metrics}.items()
    assert len(model.metrics) == len({m.key for m in model.metrics})


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
    assert {m.key for m in model.metrics} == {*record().metrics, "epsilon", "delta", "noise_multiplier", "seconds"}
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


def test_a_failure_takes_back_what_a_half_written_trial_published(uri, record):
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
