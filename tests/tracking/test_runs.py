"""One parent, and of each trial one child, one logged model and one version with its steps, values
or reason."""

import json
import time
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from raydp.tracking import find_models, log_scores
from raydp.tracking.records import tags_of

from .conftest import FACTS, SPEC, inventory, open_tracker


def test_a_trial_is_a_child_run_with_a_logged_model_and_a_version(tracker, record):
    uri = tracker.log_trial(record())
    (run,), (model,), (version,) = inventory(tracker)
    parent = tracker.store.client.search_runs(
        [run.info.experiment_id], "tags.`raydp.sweep_id` = 'sweep-0'"
    )[0]
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
    expected = {
        "run_id": "run-0",
        "epsilon": "7.99",
        "delta": "1e-05",
        "batch_size": "256",
        "num_steps": "64",
    }
    expected |= {
        "learning_rate": "0.0005",
        "seed": "0",
        "sweep": "demo",
        "certified": "true",
        "base": "tiny-llama",
    }
    assert expected.items() <= tags_of(version).items()


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
    assert [run.data.to_dictionary() for run in after[0]] == [
        run.data.to_dictionary() for run in before[0]
    ]
    assert [m.to_dictionary() for m in after[1]] == [m.to_dictionary() for m in before[1]]
    assert [(v.version, v.tags) for v in after[2]] == [(v.version, v.tags) for v in before[2]]


def test_the_sweep_is_found_again(tracker):
    first = tracker.sweep_run("sweep-0", "demo", SPEC, FACTS)
    assert tracker.sweep_run("sweep-0", "demo", SPEC, FACTS) == first
    assert tracker.sweep_run("sweep-1", "demo", SPEC, FACTS) != first


def test_the_sweep_holds_spec_facts_and_summary(tracker, tmp_path):
    run_id = tracker.sweep_run("sweep-0", "demo", SPEC, FACTS)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("<p>fine</p>")
    tracker.finish_sweep(
        {"finished": 4, "selected": {"score": 0.01}, "bound": float("inf")}, tmp_path / "report"
    )
    run = tracker.store.client.get_run(run_id)
    folder = Path(run.info.artifact_uri.removeprefix("file://"))
    assert run.info.status == "FINISHED"
    assert run.data.params["privacy.target_epsilon"] == "8"
    assert run.data.params["facts.notes.skipped"] == "3"
    assert run.data.metrics == {"finished": 4, "selected.score": 0.01}
    assert json.loads((folder / "spec.json").read_text()) == SPEC
    assert json.loads((folder / "summary.json").read_text())["bound"] == "inf"
    assert (folder / "report.html").is_file()
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("text", "c0ffee")
    assert json.loads(used.dataset.profile) == {"num_examples": 100}
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "training")]
    assert mlflow.data.get_source(used.dataset).to_dict()["tags"] == {
        "mlflow.source.name": "raydp task text"
    }
    tracker.sweep_run("sweep-0", "demo", SPEC, FACTS)
    assert tracker.store.client.get_run(run_id).info.status == "RUNNING"


def test_a_failed_trial_says_why_and_can_succeed_later(tracker, record):
    for _ in range(2):
        tracker.fail_trial(
            "run-0", "OutOfMemory in /home/alice/job/train.py:3", {"batch_size": 256, "seed": 0}
        )
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


def test_infinity_is_a_tag_and_never_a_metric(tracker, record):
    privacy = {**record().privacy, "epsilon": float("inf"), "delta": None, "certified": False}
    metrics = {
        "utility_loss": 2.0,
        "score.vmr": float("nan"),
        "score.air": float("inf"),
        "utility_gain": None,
    }
    tracker.log_trial(
        record(privacy=privacy, metrics=metrics, step_metrics=[{"step": 3, "loss": float("inf")}])
    )
    (run,), (model,), (version,) = inventory(tracker)
    assert run.data.tags["epsilon"] == version.tags["epsilon"] == model.tags["epsilon"] == "inf"
    assert "delta" not in tags_of(version)
    assert run.data.metrics == {"utility_loss": 2.0, "noise_multiplier": 1.25, "seconds": 12.5}
    assert (
        run.data.tags["raydp.nonfinite_metrics"]
        == "score.air, score.vmr, utility_gain, loss at step 3"
    )


def test_one_batch_call_holds_all_metrics(tracker, record, monkeypatch):
    """Steps, final values, parameters and tags of a trial go out together: no call grows with the
    steps."""
    tracker.log_trial(record("run-0"))
    calls = []
    for name in ("log_batch", "log_metric", "log_param"):
        method = getattr(MlflowClient, name)
        monkeypatch.setattr(
            MlflowClient,
            name,
            lambda *a, _name=name, _method=method, **k: calls.append(_name) or _method(*a, **k),
        )
    tracker.log_trial(
        record("run-1", step_metrics=[{"step": s, "loss": 1.0, "norm": 2.0} for s in range(200)])
    )
    assert calls == ["log_batch"]


def test_two_sweeps_keep_their_trials_apart(uri, record):
    tracker = open_tracker(uri)
    assert tracker.log_trial(record()) == "models:/demo/1"
    tracker.sweep_run("sweep-1", "again", SPEC, FACTS)
    assert tracker.log_trial(record()) == "models:/demo/2"


@pytest.mark.parametrize("jump_seconds", [-86_400.0, 86_400.0], ids=["back", "ahead"])
def test_the_last_measurement_counts_whatever_the_clock(tracker, record, monkeypatch, jump_seconds):
    """A clock that jumps ahead is set back later, so that both directions are the same fault."""
    model = tracker.log_trial(record())
    begun = time.time()
    for place, value in enumerate((0.02, 0.03, 0.025)):
        monkeypatch.setattr(
            "raydp.tracking.later_scores.time.time",
            lambda at=place: begun + (at % 2) * jump_seconds,
        )
        log_scores({model: {"score.vmr": value}}, tracking_uri=tracker.store.uri)
        assert find_models(tracker.store.uri)["score.vmr"].tolist() == [value]
