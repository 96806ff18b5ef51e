"""What the pages of MLflow say of a sweep: descriptions, the table of configurations, a view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from raydp.spec.reading import load_spec
from raydp.sweep.descriptions import adapter_in_words
from raydp.sweep.ending.notes import limits_of
from raydp.sweep.store.folder import SweepFolder
from raydp.tracking.store import open_store
from raydp.tracking.views import NOTE_TAG, VIEW_TAG
from tests.builders.specs import small_spec
from tests.sweep.trained import Trained


def test_the_adapter_is_said_in_words(tmp_path: Path) -> None:
    spec = load_spec(small_spec(tmp_path))
    words = adapter_in_words(spec)
    assert words.startswith("lora, r = ")
    assert "target_modules = " in words
    adapter = spec.model.adapter.model_copy(update={"type": "none"})
    model = spec.model.model_copy(update={"adapter": adapter})
    assert adapter_in_words(spec.model_copy(update={"model": model})) == "all weights"


@pytest.mark.slow
def test_the_pages_of_a_sweep(tmp_path: Path) -> None:
    sweep = Trained(tmp_path / "sweep")
    finish = sweep.ending.finish()
    assert finish.selected is not None
    client = open_store(sweep.uri).client
    parent = client.get_run(str(sweep.folder.tracking_run()))
    check_parent(client, parent, finish.selected, sweep.folder)
    check_children(client, parent)
    check_versions(client, finish.selected)
    # A second end says the same once.
    sweep.ending.finish()
    check_versions(client, finish.selected)
    assert client.get_run(parent.info.run_id).data.tags == parent.data.tags
    # The view is the user's from then on.
    experiment = client.get_experiment(parent.info.experiment_id)
    state = json.loads(json.loads(experiment.tags[VIEW_TAG])["state"])
    assert "metrics.`score`" in state["selectedColumns"]
    client.set_experiment_tag(experiment.experiment_id, NOTE_TAG, "ours")
    type(sweep.ending.listener).open(sweep.context)
    assert client.get_experiment(experiment.experiment_id).tags[NOTE_TAG] == "ours"


def check_parent(client: Any, parent: Any, selected: Any, folder: SweepFolder) -> None:
    note = parent.data.tags[NOTE_TAG]
    assert note.startswith("Selected: b=32 T=")
    assert f"loss {selected.utility_loss:.4g} (untrained " in note
    assert f"), score {selected.score:.3g}, ε ≤ " in note
    assert "- How sure: " in note
    cautions = [line.split(": ", 1)[1] for line in note.splitlines() if "- Caution " in line]
    assert cautions == limits_of(folder, [c.short for c in selected.cautions])[:4]
    assert cautions[0].startswith("not certified, do not release: ")
    assert len([text for text in cautions if "models" in text]) == 1, "the joint ε is said once"
    assert "?viewStateShareKey=raydp)" in note
    table = pd.read_csv(client.download_artifacts(parent.info.run_id, "configurations.csv"))
    assert len(table) == 2
    assert table["score"].is_monotonic_increasing
    assert {"report.html", "configurations.csv"} <= {
        entry.path for entry in client.list_artifacts(parent.info.run_id)
    }


def check_children(client: Any, parent: Any) -> None:
    condition = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    runs = client.search_runs([parent.info.experiment_id], condition)
    assert len(runs) == 4
    for run in runs:
        params = run.data.params
        assert (params["base_model"], params["target_epsilon"]) == ("tiny", "8.0")
        assert params["adapter"].startswith("lora, ")
        assert params["adam_eps"] == "1e-08"
        assert not {"eps", "momentum"} & set(params), "momentum is DP-SGD's"
        assert run.data.tags[NOTE_TAG].startswith("loss ")


def check_versions(client: Any, selected: Any) -> None:
    versions = client.search_model_versions("name = 'small'")
    assert len(versions) == 4
    for version in versions:
        text, uri = version.description, f"models:/small/{version.version}"
        assert ("Selected: " in text) == (uri == selected.model_uri)
        assert text.count("Selected: ") <= 1
        for part in ("score ", "standard error", "ε ≤ ", "for one mail", "digest ", "adapter: "):
            assert part in text
        assert len(version.tags) <= 9
