"""A version has few tags and its record as JSON. Versions of earlier raydp, with a tag each, are
read as before."""

import json

import pytest

from raydp.search_spaces import Configuration
from raydp.tracking import find_models, load_model, promote_model, set_alarms, show_model
from raydp.tracking.records import RECORD_TAG, tags_of
from raydp.tracking.sealing.trust import ALARM_TAG

CONFIGURATION = Configuration(batch_size=256, num_steps=64, learning_rate=5e-4)


def version_of(tracker):
    return tracker.store.client.get_model_version("demo", "1")


def write_as_earlier(tracker):
    """Give version 1 the tags that raydp wrote before it had a record as JSON."""
    client, tags = tracker.store.client, version_of(tracker).tags
    for name, text in json.loads(tags[RECORD_TAG]).items():
        client.set_model_version_tag("demo", "1", name, text)
    client.delete_model_version_tag("demo", "1", RECORD_TAG)


def test_a_version_has_a_description_and_at_most_eight_tags(tracker, record):
    tracker.log_trial(record(description="loss 2.5, score 0.01"))
    version = version_of(tracker)
    assert version.description == "loss 2.5, score 0.01"
    promote_model(
        "models:/demo/1", "privacy-preferred", "It leaks least.", tracking_uri=tracker.store.uri
    )
    tags = version_of(tracker).tags
    assert len(tags) <= 8
    kept = {"sweep": "demo", "epsilon": "7.99", "certified": "true", "base": "tiny-llama"}
    assert kept.items() <= tags.items()
    assert json.loads(tags[RECORD_TAG])["num_steps"] == "64"


def test_a_description_is_no_part_of_the_record(record):
    assert record().digest() == record(description="in other words").digest()


def test_tags_of_earlier_versions_say_the_same(tracker, record):
    tracker.log_trial(record())
    now, uri = tags_of(version_of(tracker)), tracker.store.uri
    shown = show_model("models:/demo/1", tracking_uri=uri)
    write_as_earlier(tracker)
    tags = version_of(tracker).tags
    assert RECORD_TAG not in tags
    assert len(tags) == 17
    tags_then = tags_of(version_of(tracker))
    now.pop(RECORD_TAG)
    assert tags_then == now
    assert show_model("models:/demo/1", tracking_uri=uri) == shown
    assert shown["card"]["problem"] is None


def test_models_of_earlier_versions_are_found_loaded_and_alarmed(tracker, record, base_folder):
    tracker.log_trial(record())
    write_as_earlier(tracker)
    uri = tracker.store.uri
    assert list(find_models(uri, max_epsilon=8, batch_size=256, verify=True).version) == [1]
    assert load_model("models:/demo/1", base=str(base_folder), tracking_uri=uri) is not None
    set_alarms("demo", "demo", {CONFIGURATION: "refuted"}, tracking_uri=uri)
    assert version_of(tracker).tags[ALARM_TAG] == "refuted"
    assert find_models(uri, max_epsilon=8).attrs["left_out"] == {"an audit refutes its ε": 1}


def test_an_alarm_finds_the_configuration_in_the_record(tracker, record):
    tracker.log_trial(record())
    set_alarms("demo", "demo", {CONFIGURATION: "refuted"}, tracking_uri=tracker.store.uri)
    assert version_of(tracker).tags[ALARM_TAG] == "refuted"


@pytest.mark.parametrize("beside", [{}, {"delta": "1e-05"}])
def test_a_changed_record_is_found(tracker, record, beside):
    """Also where a tag of the true value stands beside it."""
    tracker.log_trial(record())
    client = tracker.store.client
    changed = {**json.loads(version_of(tracker).tags[RECORD_TAG]), "delta": "1e-09"}
    for name, text in {RECORD_TAG: json.dumps(changed), **beside}.items():
        client.set_model_version_tag("demo", "1", name, text)
    found = find_models(tracker.store.uri, max_epsilon=8)
    assert found.empty
    assert found.attrs["left_out"] == {"figures differ from the card's": 1}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"delta": 1}', "[" * 90_000])
def test_a_record_that_is_none_is_a_version_without_a_guarantee(tracker, record, text):
    tracker.log_trial(record())
    tracker.store.client.set_model_version_tag("demo", "1", RECORD_TAG, text)
    assert list(find_models(tracker.store.uri).version) == [1]
    assert find_models(tracker.store.uri, max_epsilon=8).empty


def test_mlflow_itself_finds_and_sorts_by_loss_and_score(tracker, record):
    """MLflow's search for versions knows names and tags alone; loss and score are metrics of the
    version's logged model."""
    for number, (loss, score) in enumerate([(2.5, 0.03), (2.6, 0.01), (2.4, 0.02)]):
        metrics = {"utility_loss": loss, "score": score}
        tracker.log_trial(record(f"run-{number}", metrics=metrics))
    client = tracker.store.client
    experiment = client.get_experiment_by_name("experiment").experiment_id
    models = client.search_logged_models(
        [experiment],
        "metrics.utility_loss < 2.55",
        order_by=[{"field_name": "metrics.score", "ascending": True}],
    )
    links = [json.loads(model.tags["mlflow.modelVersions"])[0]["version"] for model in models]
    assert links == ["3", "1"]


def test_a_run_names_its_user_and_its_source(tracker, record, monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    tracker.log_trial(record())
    run = tracker.store.client.get_run(version_of(tracker).run_id)
    assert run.info.user_id == run.data.tags["mlflow.user"] == "ada"
    assert run.data.tags["mlflow.source.name"] == "raydp sweep"
    assert list(run.data.params)[:4] == ["batch_size", "num_steps", "learning_rate", "seed"]


def test_eps_of_adam_has_another_name_in_mlflow_alone(tracker, record):
    """Look-ups keep the name of the spec, also for runs that an earlier raydp wrote."""
    params = {"method": "dp_adam", "task_hash": "c0ffee", "eps": 1e-8}
    uri = tracker.log_trial(record(params=params))
    run = tracker.store.client.get_run(version_of(tracker).run_id)
    assert run.data.params["adam_eps"] == "1e-08"
    assert "eps" not in run.data.params
    found = find_models(tracker.store.uri, where=["param.eps = 1e-8"])
    assert list(found.model_uri) == [uri]
    assert list(found["param.eps"]) == ["1e-08"]
    assert find_models(tracker.store.uri, where=["eps = 1e-6"]).empty
