"""A service exports models in many threads, and loads them beside."""

import pytest
import torch

from raydp.tracking import export_model, load_model
from raydp.tracking.models.plain import load_plainly
from tests.tracking.test_loading import logits
from tests.tracking.test_threads import at_once, most_at_once, tied  # noqa: F401 - a fixture


@pytest.mark.slow
def test_eight_threads_export_and_load(tied, tmp_path):  # noqa: F811 - a fixture
    tracker, made, base, expected = tied
    where = {"tracking_uri": tracker.store.uri, "base": base}
    uri = tracker.log_trial(made)
    kinds = (
        lambda at: logits(load_model(uri, **where)),
        lambda at: logits(load_model(uri, **where)),
        lambda at: export_model(uri, tmp_path / f"merged-{at}", merge=True, **where) and expected,
        lambda at: export_model(uri, tmp_path / f"out-{at}", **where) and expected,
    )
    for result in at_once(*(lambda at=at: kinds[at % len(kinds)](at) for at in range(8))):
        assert torch.equal(result, expected)
    assert torch.equal(logits(load_model(uri, **where)), expected), "a later load alone"


def test_one_thread_at_a_time_builds_a_model(tied, tmp_path, monkeypatch):  # noqa: F811
    tracker, made, base, _ = tied
    uri, where = tracker.log_trial(made), {"tracking_uri": tracker.store.uri, "base": base}
    export_model(uri, tmp_path / "exported", **where)
    counts = most_at_once(
        monkeypatch,
        lambda: load_model(uri, **where),
        lambda: export_model(uri, tmp_path / "a", merge=True, **where),
        lambda: export_model(uri, tmp_path / "b", merge=True, **where),
    )
    assert counts == [1, 1, 1]


def test_one_thread_at_a_time_builds_a_model_without_raydp(
    tied,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    tracker, made, base, _ = tied
    uri, where = tracker.log_trial(made), {"tracking_uri": tracker.store.uri, "base": base}
    export_model(uri, tmp_path / "exported", **where)
    load = [lambda: load_plainly(tmp_path / "exported", {"base": base})] * 2
    assert most_at_once(monkeypatch, *load) == [1, 1]
