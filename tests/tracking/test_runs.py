"""One parent, one child, one logged model and one version a trial, however often and wherever the driver dies."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import ViewType

from raydp.tracking import Tracker, find_models, promote_model, show_model
from raydp.tracking.trials import MODEL_URI_TAG, TrialWriter

from .conftest import FACTS, SPEC, open_tracker

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


FILES = {"adapter_config.json", "adapter_model.safetensors", "privacy.json", "base.json", "MLmodel"}


def inventory(tracker):
    """What the store holds: runs below the sweep, logged models, versions."""
    client, experiment = tracker.store.client, tracker.store.client.get_experiment_by_name("experiment").experiment_id
    runs = client.search_runs([experiment], "tags.`raydp.run_id` LIKE '%'")
    return runs, client.search_logged_models([experiment]), client.search_model_versions("name = 'demo'")


def test_a_trial_is_a_child_run_with_a_logged_model_and_a_version(tracker, record):
    uri = tracker.log_trial(record())
    (run,), (model,), (version,) = inventory(tracker)
    parent = tracker.store.client.search_runs([run.info.experiment_id], "tags.`raydp.sweep_id` = 'sweep-0'")[0]
    assert uri == "models:/demo/1"
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 12_500
    assert run.data.params["learning_rate"] == "0.0005"
    assert run.data.params["beta2"] == "0.999"
    assert run.data.metrics["score.vmr"] == 0.01
    assert run.data.metrics["train_loss"] == pytest.approx(2.6)  # 3 - 4/10: the last step's
    assert [output.model_id for output in run.outputs.model_outputs] == [model.model_id]
    assert model.source_run_id == run.info.run_id
    assert str(model.status) == "READY"
    assert {m.key: m.value for m in model.metrics}["epsilon"] == 7.99
    assert version.run_id == run.info.run_id
    assert json.loads(model.tags["mlflow.modelVersions"]) == [{"name": "demo", "version": "1"}]
    expected = {"run_id": "run-0", "epsilon": "7.99", "delta": "1e-05", "batch_size": "256", "num_steps": "64"}
    expected |= {"learning_rate": "0.0005", "seed": "0", "sweep": "demo", "certified": "true", "base": "tiny-llama"}
    assert expected.items() <= version.tags.items()


def test_every_step_is_kept(tracker, record):
    tracker.log_trial(record())
    (run,), _, _ = inventory(tracker)
    history = tracker.store.client.get_metric_history(run.info.run_id, "grad_norm")
    assert [(m.step, m.value) for m in history] == [(s, 1.0 + s) for s in range(5)]


def test_a_second_call_changes_nothing(tracker, record):
    first = tracker.log_trial(record())
    before = inventory(tracker)
    changed = record(metrics={"utility_loss": 9.0}, model_dir=Path("cleaned up since"))
    assert open_tracker(tracker.store.uri).log_trial(changed) == first
    after = inventory(tracker)
    assert [run.data.to_dictionary() for run in after[0]] == [run.data.to_dictionary() for run in before[0]]
    assert [m.to_dictionary() for m in after[1]] == [m.to_dictionary() for m in before[1]]
    assert [(v.version, v.tags) for v in after[2]] == [(v.version, v.tags) for v in before[2]]


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


@pytest.mark.parametrize("changed", [False, True], ids=["same record", "trained again"])
@pytest.mark.parametrize("cut", CUTS)
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


def test_the_sweep_is_found_again(tracker):
    first = tracker.sweep_run("sweep-0", "demo", SPEC, FACTS)
    assert tracker.sweep_run("sweep-0", "demo", SPEC, FACTS) == first
    assert tracker.sweep_run("sweep-1", "demo", SPEC, FACTS) != first


def test_the_sweep_holds_spec_facts_and_summary(tracker, tmp_path):
    run_id = tracker.sweep_run("sweep-0", "demo", SPEC, FACTS)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("<p>fine</p>")
    tracker.finish_sweep({"finished": 4, "selected": {"score": 0.01}, "bound": float("inf")}, tmp_path / "report")
    run = tracker.store.client.get_run(run_id)
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    assert run.info.status == "FINISHED"
    assert run.data.params["privacy.target_epsilon"] == "8"
    assert run.data.params["facts.notes.skipped"] == "3"
    assert run.data.metrics == {"finished": 4, "selected.score": 0.01}
    assert json.loads((folder / "spec.json").read_text()) == SPEC
    assert json.loads((folder / "summary.json").read_text())["bound"] == "inf"
    assert (folder / "report.html").is_file()
    tracker.sweep_run("sweep-0", "demo", SPEC, FACTS)
    assert tracker.store.client.get_run(run_id).info.status == "RUNNING"


def test_a_failed_trial_says_why_and_can_succeed_later(tracker, record):
    for _ in range(2):
        tracker.fail_trial("run-0", "OutOfMemory in /home/alice/job/train.py:3", {"batch_size": 256, "seed": 0})
    (run,), models, versions = inventory(tracker)
    assert run.info.status == "FAILED"
    assert run.data.tags["raydp.reason"] == "OutOfMemory in train.py:3"
    assert run.data.params["batch_size"] == "256"
    assert (list(models), list(versions)) == ([], [])
    tracker.log_trial(record())
    (run,), (_model,), (_version,) = inventory(tracker)
    assert run.info.status == "FINISHED"
    tracker.fail_trial("run-0", "too late")
    (run,), (_model,), (_version,) = inventory(tracker)
    assert run.info.status == "FINISHED"


def test_a_failure_takes_back_what_a_half_written_trial_published(uri, record):
    _kill(uri, record(), "registered")
    tracker = open_tracker(uri)
    tracker.fail_trial("run-0", "gave up")
    (run,), models, versions = inventory(tracker)
    assert (run.info.status, list(models), list(versions)) == ("FAILED", [], [])


def test_infinity_is_a_tag_and_never_a_metric(tracker, record):
    privacy = {**record().privacy, "epsilon": float("inf"), "delta": None, "certified": False}
    metrics = {"utility_loss": 2.0, "score.vmr": float("nan"), "score.air": float("inf"), "utility_gain": None}
    tracker.log_trial(record(privacy=privacy, metrics=metrics, step_metrics=[{"step": 3, "loss": float("inf")}]))
    (run,), (model,), (version,) = inventory(tracker)
    assert run.data.tags["epsilon"] == version.tags["epsilon"] == model.tags["epsilon"] == "inf"
    assert "delta" not in version.tags
    assert run.data.metrics == {"utility_loss": 2.0, "noise_multiplier": 1.25, "seconds": 12.5}
    assert run.data.tags["raydp.nonfinite_metrics"] == "score.air, score.vmr, utility_gain, loss at step 3"


def test_one_batch_call_holds_all_metrics(tracker, record, monkeypatch):
    """Steps, final values, parameters and tags of a trial go out together: no call grows with the steps."""
    tracker.log_trial(record("run-0"))
    calls = []
    for name in ("log_batch", "log_metric", "log_param"):
        method = getattr(MlflowClient, name)
        monkeypatch.setattr(
            MlflowClient, name, lambda *a, _name=name, _method=method, **k: calls.append(_name) or _method(*a, **k)
        )
    tracker.log_trial(record("run-1", step_metrics=[{"step": s, "loss": 1.0, "norm": 2.0} for s in range(200)]))
    assert calls == ["log_batch"]


def test_making_a_store_says_nothing(schema):
    assert schema[1] == []


def test_nothing_global_is_set(tracker, record, monkeypatch):
    import mlflow

    before = mlflow.get_tracking_uri(), mlflow.get_registry_uri(), os.environ.get("MLFLOW_TRACKING_URI")
    tracker.log_trial(record())
    assert (mlflow.get_tracking_uri(), mlflow.get_registry_uri(), os.environ.get("MLFLOW_TRACKING_URI")) == before
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


def test_a_relative_address_is_fixed_when_the_store_is_opened(uri, record, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "store")
    tracker = open_tracker("sqlite:///raydp.db")
    monkeypatch.chdir(tmp_path)
    tracker.log_trial(record())
    assert not (tmp_path / "raydp.db").exists()
    assert len(inventory(open_tracker(uri))[0]) == 1


def test_two_sweeps_keep_their_trials_apart(uri, record):
    tracker = open_tracker(uri)
    assert tracker.log_trial(record()) == "models:/demo/1"
    tracker.sweep_run("sweep-1", "again", SPEC, FACTS)
    assert tracker.log_trial(record()) == "models:/demo/2"


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
        Tracker(address, "experiment", "demo")


def test_names_that_mlflow_would_choke_on_are_refused(uri):
    with pytest.raises(ValueError, match=r"tracking\.registered_model must be letters"):
        Tracker(uri, "experiment", "de/mo")


def test_a_deleted_experiment_is_refused(tracker):
    client = tracker.store.client
    client.delete_experiment(client.get_experiment_by_name("experiment").experiment_id)
    with pytest.raises(ValueError, match=r"tracking\.experiment must not be deleted"):
        Tracker(tracker.store.uri, "experiment", "demo")


def test_a_replaced_run_is_deleted_not_hidden(uri, record):
    _kill(uri, record(), "values logged")
    tracker = open_tracker(uri)
    tracker.log_trial(record(seconds=1.0))
    client = tracker.store.client
    experiment = client.get_experiment_by_name("experiment").experiment_id
    deleted = client.search_runs([experiment], run_view_type=ViewType.DELETED_ONLY)
    assert len(deleted) == 1


def _open(uri: str) -> None:
    Tracker(uri, "experiment", "model")


def test_processes_that_make_one_store_at_the_same_time_both_get_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/fresh.db"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_open, args=(uri,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    _open(uri)
