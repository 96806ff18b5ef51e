"""`raydp score MODEL`: one model from the registry or its folder has the values that training
measured."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from raydp.extensions.later_scores.api import score
from raydp.extensions.later_scores.one_model import score_model
from raydp.extensions.later_scores.requests import requests_from
from raydp.system.output import stderr
from tests.conftest import Answer
from tests.sweep.trained import Trained

pytestmark = pytest.mark.xdist_group("scoring")


def test_one_model_from_the_registry_or_its_folder(
    trained: Trained, tmp_path: Path, raydp: Callable[..., Answer]
) -> None:
    spec, trial = tmp_path / "spec.yaml", trained.trials[2]
    spec.write_text(yaml.safe_dump(trained.content))
    uri = trained.folder.model_uri(trial.run_id)
    options = ("--task", spec, "--seed", trial.seed, "--json")
    expected = trained.folder.result(trial.run_id).scores["vmr"].document()
    answer = raydp(
        "score", trained.folder.trial(trial.run_id) / "model", "--score", "vmr", *options
    ).json()
    found = answer["scores"]["vmr"]
    assert {k: found[k] for k in ("value", "std_error", "per_secret")} == {
        k: expected[k] for k in ("value", "std_error", "per_secret")
    }
    assert (answer["logged"], answer["note"]) == ([], None)
    of_registered = ("score", uri, "--score", "vmr,logprob", "--uri", trained.uri, *options)
    first, second = raydp(*of_registered).json(), raydp(*of_registered).json()
    assert first["scores"]["vmr"]["value"] == expected["value"]
    assert first["logged"] == ["logprob"], "vmr is on the model since training"
    assert second["logged"] == []
    assert second["note"].startswith(
        "The model already has a value of vmr, logprob, which is kept."
    )
    assert (trained.metrics()["metric_name"] == "score.logprob").sum() == 1
    another = {**trained.content, "task": {**trained.content["task"], "canary_seed": 1}}
    spec.write_text(yaml.safe_dump(another))
    labelled = ("--label", "other", "--uri", trained.uri)
    answer = raydp("score", uri, "--score", "vmr", *labelled, *options).json()
    assert answer["logged"] == []
    assert "not the one that the model was trained on" in answer["note"]


@pytest.mark.slow
def test_eight_threads_score_one_model(trained: Trained, tmp_path: Path) -> None:
    """Each loads the base and the adapter of its own, and shows its progress on the same
    terminal."""
    spec, trial = tmp_path / "spec.yaml", trained.trials[2]
    spec.write_text(yaml.safe_dump(trained.content))
    uri = str(trained.folder.model_uri(trial.run_id))

    def measured(_: int) -> object:
        table = score(uri, "vmr", task=spec, seed=trial.seed, tracking_uri=trained.uri)
        return table.attrs["document"]["scores"]["vmr"]["value"]

    with ThreadPoolExecutor(8) as pool:
        values = set(pool.map(measured, range(8)))
    assert values == {trained.folder.result(trial.run_id).scores["vmr"].document()["value"]}


def test_one_model_needs_a_task_and_weights(
    trained: Trained, tmp_path: Path, raydp: Callable[..., Answer]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(trained.content))
    answer = raydp("score", "models:/small/1", "--score", "vmr", "--uri", trained.uri)
    assert (answer.code, "--task must be given" in answer.err) == (2, True)
    answer = raydp("score", tmp_path, "--score", "vmr", "--task", spec)
    assert (answer.code, "folder with safetensors" in answer.err) == (2, True)
    cut = shutil.copytree(
        trained.folder.trial(trained.trials[0].run_id) / "model", tmp_path / "cut"
    )
    (cut / "adapter_model.safetensors").write_bytes(b"\0" * 20)
    answer = raydp("score", cut, "--score", "vmr", "--task", spec)
    assert (answer.code, "must hold whole safetensors weights" in answer.err) == (2, True)
    with pytest.raises(ValueError, match="must measure one model"):
        score_model(
            "x", requests_from("model_distance"), task=spec, tracking_uri="", seed=0, console=stderr
        )
