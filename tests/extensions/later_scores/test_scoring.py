"""`raydp score` with real Ray: what training measured comes out again, and kills and failures cost
nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from raydp import select
from raydp.extensions.later_scores.measurements import WrittenMeasurements
from raydp.extensions.later_scores.requests import requests_from
from raydp.extensions.later_scores.sweep import score_sweep
from raydp.scores.score import Measurement
from raydp.spec.reading import load_spec
from raydp.sweep.planning.inputs import build_task
from raydp.sweep.reports import report
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.points import points_table, secrets_table
from raydp.system.output import stderr
from raydp.tracking import find_models
from tests.builders.specs import small_spec
from tests.conftest import start_raydp
from tests.extensions.later_scores.measuring import measure
from tests.processes import below
from tests.sweep.trained import SCORES, Trained
from tests.sweep.undisturbed import wait_until

pytestmark = pytest.mark.xdist_group("scoring")


@pytest.fixture(scope="module")
def scored(
    trained: Trained, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Trained, dict[str, Any], dict[str, Any]]:
    """Scored twice: the first time one model's weights are cut off and another's are in the
    registry alone."""
    file = tmp_path_factory.mktemp("scores") / "scores.yaml"
    again = [{"name": "vmr", "label": "vmr-again"}, {"name": "vmr_exact", "label": "exact-again"}]
    calm = {"name": "air", "num_samples": 20, "label": "calm"}
    file.write_text(
        yaml.safe_dump(
            [*again, {"name": "air", "num_samples": 3}, {"name": "model_distance"}, calm]
        )
    )
    broken, moved = (trained.folder.trial(t.run_id) / "model" for t in trained.trials[:2])
    weights = broken / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    shutil.move(moved, trained.folder.path.parent / "moved")
    first = measure(trained, names=None, file=file)
    weights.write_bytes(whole)
    second = measure(trained, names=None, file=file)
    return trained, first, second


@pytest.mark.daily
def test_a_model_that_fails_is_recorded_with_its_reason_and_the_rest_go_on(
    scored: tuple[Any, ...],
) -> None:
    trained, first, second = scored
    failures = first["scores"]["vmr-again"]["failed"]
    assert [f["run_id"] for f in failures] == [trained.trials[0].run_id]
    assert "whole safetensors weights" in failures[0]["reason"]
    assert first["scores"]["vmr-again"]["measured"] == 4, "three of four runs, and the base model"
    assert len(first["scores"]["model_distance"]["failed"]) == 4, "distances need every model"
    assert second["scores"]["vmr-again"]["failed"] == []
    assert (
        second["scores"]["vmr-again"]["measured"],
        second["scores"]["vmr-again"]["already"],
    ) == (1, 4)
    assert (second["scores"]["model_distance"]["measured"], second["tracked"]) == (4, 4)
    assert not (trained.folder.path / "scores" / ".models").exists(), (
        "what came from the registry is gone"
    )


@pytest.mark.daily
def test_measuring_again_reproduces_the_values_of_training(scored: tuple[Any, ...]) -> None:
    """Bitwise: the same weights in the same topology, also of the model that came from the
    registry."""
    trained, _, second = scored
    points = points_table(trained.folder)
    for name, label in (("vmr", "vmr-again"), ("vmr_exact", "exact-again")):
        assert points[f"score.{label}"].tolist() == points[f"score.{name}"].tolist()
        assert (
            points[f"score.{label}.std_error"].tolist()
            == points[f"score.{name}.std_error"].tolist()
        )
        assert second["scores"][label]["base"] == trained.folder.result(BASE_RUN).scores[name].value
    secrets = secrets_table(trained.folder)
    own, again = (
        secrets[secrets["score"] == s].drop(columns="score") for s in ("vmr", "vmr-again")
    )
    pd.testing.assert_frame_equal(own.reset_index(drop=True), again.reset_index(drop=True))


@pytest.mark.daily
def test_the_tables_on_disk_have_them_and_the_counts_of_the_secrets(
    scored: tuple[Any, ...],
) -> None:
    trained, _, _ = scored
    assert {"score.air", "score.model_distance"} <= set(
        pd.read_csv(trained.folder.path / "points.csv")
    )
    secrets = pd.read_parquet(trained.folder.path / "secrets.parquet")
    assert set(secrets["count"]) == {20, 40, 80}
    task, _ = build_task(trained.spec)
    counts = {secret.name: secret.count for secret in task.secrets()}
    assert (secrets["count"] == secrets["secret_id"].map(counts)).all()


@pytest.mark.daily
def test_mlflow_has_each_value_once_and_finds_models_by_it(scored: tuple[Any, ...]) -> None:
    trained, _, _ = scored
    metrics = trained.metrics()
    for name in ("score.air", "score.vmr-again", "score.model_distance"):
        assert (metrics["metric_name"] == name).sum() == 4, "one a model, after two calls"
    points = points_table(trained.folder)
    bound = float(points["score.model_distance"].median())
    found = find_models(trained.uri, score="model_distance", max_score=bound, order_by="score")
    assert sorted(found["run_id"]) == sorted(
        points[points["score.model_distance"] <= bound]["run_id"]
    )


@pytest.mark.daily
def test_a_third_call_measures_nothing_and_a_lost_metric_is_logged_again(
    scored: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, _, _ = scored
    with sqlite3.connect(trained.uri.removeprefix("sqlite:///")) as database:
        database.execute("delete from logged_model_metrics where metric_name = 'score.air'")
    before = {p: p.stat().st_mtime_ns for p in (trained.folder.path / "scores").glob("air/*.json")}
    monkeypatch.setattr(
        "raydp.extensions.later_scores.measurement.start_ray",
        lambda _: pytest.fail("nothing is left to measure"),
    )
    answer = measure(trained, names="air", params=["num_samples=3"])
    assert (answer["scores"]["air"]["measured"], answer["scores"]["air"]["already"]) == (0, 5)
    del before[trained.folder.path / "scores" / "air" / "measurement.json"]
    assert all(p.stat().st_mtime_ns == time for p, time in before.items())
    assert (trained.metrics()["metric_name"] == "score.air").sum() == 4


@pytest.mark.daily
def test_select_and_report_by_a_score_that_was_measured_later(
    scored: tuple[Any, ...], tmp_path: Path
) -> None:
    trained, _, _ = scored
    points = points_table(trained.folder)
    means = points.groupby("num_steps")["score.model_distance"].mean()
    chosen = select(trained.folder.path, rule="oracle", score="model_distance")
    assert chosen.configuration.num_steps == means.idxmin()
    assert chosen.score == pytest.approx(means.min())
    worst = (
        secrets_table(trained.folder).query("score == 'vmr_exact'").groupby("run_id")["value"].max()
    )
    means = points.assign(worst=points["run_id"].map(worst)).groupby("num_steps")["worst"].mean()
    assert select(trained.folder.path, rule="oracle", worst_case=True).score == pytest.approx(
        means.min()
    )
    report(trained.folder.path, tmp_path / "report.html", score="exact-again", worst_case=True)
    base = trained.folder.result(BASE_RUN).scores["vmr_exact"].per_secret
    page = (tmp_path / "report.html").read_text().replace("\xa0", " ").replace("&nbsp;", " ")
    assert f"{100 * max(base.values()):.3g} %" in page
    with pytest.raises(ValueError, match="got 'model_distance' without"):
        select(trained.folder.path, score="model_distance", worst_case=True)


@pytest.mark.daily
def test_models_whose_adapters_differ_in_size_are_measured_by_one_call(tmp_path: Path) -> None:
    space = {
        "batch_size": [32],
        "num_steps": [3],
        "learning_rate": [0.01],
        "model.adapter.r": [1, 2],
    }
    scores = [{"name": "vmr_exact"}, {"name": "logprob"}]
    trained = Trained(tmp_path / "sweep", space=space, scores=scores)
    answer = measure(trained, names="logprob", label="again")["scores"]["again"]
    assert (answer["measured"], answer["failed"]) == (5, [])
    points = points_table(trained.folder)
    assert len(points) == 4
    np.testing.assert_array_equal(points["score.again"], points["score.logprob"])


@pytest.mark.daily
def test_a_label_means_one_measurement(scored: tuple[Any, ...]) -> None:
    trained, _, _ = scored
    own = measure(trained, names="vmr")["scores"]["vmr"]
    assert own == {"score": "vmr", "note": "measured in training"}
    with pytest.raises(
        ValueError, match=r"label must be new .* got 'vmr', which the sweep measured in training"
    ):
        measure(trained, names="vmr", params=["num_samples=5"])
    with pytest.raises(
        ValueError, match=r"label must be new .* got 'air', which is .*'num_samples': 3"
    ):
        measure(trained, names="air")


def test_other_data_than_the_sweeps_are_refused(trained: Trained) -> None:
    """A run's identity holds the hash of the data, so a plan with another one stands for changed
    data."""
    changed = SweepFolder(path=trained.folder.path.parent / "changed")
    changed.path.mkdir()
    shutil.copy(trained.folder.path / "spec.yaml", changed.path)
    plan = (trained.folder.path / "plan.json").read_text()
    other = plan.replace(next(iter(trained.folder.plan().trials)).run_id, "0" * 16)
    (changed.path / "plan.json").write_text(other)
    with pytest.raises(ValueError, match="data, secrets and base weights"):
        score_sweep(changed, requests_from("air"), console=stderr)


@pytest.mark.daily
def test_a_distance_is_dropped_when_the_set_has_changed(scored: tuple[Any, ...]) -> None:
    trained, _, _ = scored
    copied = SweepFolder(path=trained.folder.path.parent / "copied")
    shutil.copytree(trained.folder.path / "scores", copied.path / "scores")
    names = [trial.run_id for trial in trained.trials]
    (request,) = requests_from("model_distance")
    same = WrittenMeasurements.begin(copied, request, seed=0, models=names)
    assert all(same.finished(name) for name in names)
    fewer = WrittenMeasurements.begin(copied, request, seed=0, models=names[1:])
    assert not any(fewer.finished(name) for name in names)


def test_results_of_an_unknown_measurement_are_dropped(tmp_path: Path) -> None:
    """A kill while a measurement was dropped can leave results without their measurement.json."""
    folder = SweepFolder(path=tmp_path)
    (request,) = requests_from("vmr")
    begun = WrittenMeasurements.begin(folder, request, seed=0, models=None)
    begun.commit(
        "run",
        {
            "status": "finished",
            "measurement": Measurement.over_secrets([1.0], ids=["a"]).document(),
        },
    )
    assert WrittenMeasurements.begin(folder, request, seed=0, models=None).finished("run")
    (begun.path / "measurement.json").unlink()
    assert WrittenMeasurements.begin(folder, request, seed=1, models=None).finished("run") is None


def test_a_sweep_refuses_a_score_of_a_set_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"scores must measure one model, got 'model_distance'.*raydp score small"
    ):
        build_task(load_spec(small_spec(tmp_path, scores=[*SCORES, {"name": "model_distance"}])))


@pytest.mark.slow
def test_the_counts_stay_out_of_mlflow(trained: Trained) -> None:
    trained.ending.finish()
    (published,) = (trained.folder.path.parent.parent / "mlruns").rglob("secrets.parquet")
    assert "count" not in pd.read_parquet(published)


@pytest.mark.slow
def test_of_a_private_selection_only_the_released_model_is_measured(tmp_path: Path) -> None:
    privacy = {
        "target_epsilon": 8, "accountant": "rdp", "noise_key": "test", "tuning": "private_selection",
        "num_runs": {"mean": 3},
    }  # fmt: skip
    private = Trained(tmp_path, privacy=privacy, select={"score": "vmr_exact"})
    with pytest.raises(ValueError, match="must have a finished run that may be measured"):
        measure(private, names="air")
    private.ending.finish()
    released = private.folder.decision()
    answer = measure(private, names="air", params=["num_samples=2"])
    measured = {p.stem for p in (private.folder.path / "scores" / "air").glob("*.json")}
    assert measured == {"measurement", BASE_RUN, released}
    assert len(private.trials) > 1
    assert "private selection" in answer["note"]
    assert not private.metrics()["metric_name"].str.startswith("score").any()
    with pytest.raises(ValueError, match="score must be left out"):
        select(private.folder.path, score="air")


@pytest.mark.daily
@pytest.mark.parametrize("victim", ["driver", pytest.param("Scorer", marks=pytest.mark.thorough)])
def test_after_a_kill_the_values_are_those_of_an_undisturbed_measurement(
    scored: tuple[Any, ...], tmp_path: Path, victim: str
) -> None:
    """The undisturbed one has the label calm."""
    trained = scored[0]
    label, folder = f"after-{victim}", trained.folder.path
    long = ("--score", "air", "--param", "num_samples=20", "--label", label, "--json")
    driver = start_raydp(folder.parent.parent, "score", folder, *long, "--workers", 1)
    results = lambda: list((folder / "scores" / label).glob("[0-9a-f]*.json"))  # noqa: E731
    wait_until(results, driver)
    done = {p: p.stat().st_mtime_ns for p in results()}
    assert len(done) < 5, "there is something left to do"
    if victim == "driver":
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
        driver = start_raydp(folder.parent.parent, "score", folder, *long)
    else:
        (scorer,) = below(driver.pid, f"ray::{victim}")
        scorer.kill()
    out, err = driver.communicate(timeout=240)
    assert driver.returncode == 0, err
    assert json.loads(out)["scores"][label]["failed"] == []
    assert all(p.stat().st_mtime_ns == time for p, time in done.items()), (
        "nothing finished was measured again"
    )
    points = points_table(trained.folder)
    assert points[f"score.{label}"].tolist() == points["score.calm"].tolist()
