"""An audit that refutes a model's ε: the alias privacy-preferred is refused, until another audit
finds nothing."""

from __future__ import annotations

import pytest

from raydp.search_spaces import Configuration
from raydp.tracking import promote_model, set_alarms, set_alias, show_model
from raydp.tracking.sealing.trust import ALARM_TAG

FOUND = "the audit demo-audit refutes its ε = 8. Mend the training and lift it by a new audit: raydp audit demo --new."


@pytest.fixture
def models(tracker, record):
    """Two seeds of one configuration, and another configuration, which is preferred: names and the
    store."""
    tracker.log_trial(record())
    tracker.log_trial(record("run-1", seed=1))
    tracker.log_trial(record("run-2", batch_size=512))
    return tracker.store.uri


def alarms(record, **found: str | None):
    made = record()
    batch_size = found.pop("batch_size", made.batch_size)
    of = Configuration(
        batch_size=batch_size, num_steps=made.num_steps, learning_rate=made.learning_rate
    )
    return {of: found["alarm"]}


def mark(uri, record, alarm, **changes):
    set_alarms("demo", "demo", alarms(record, alarm=alarm, **changes), tracking_uri=uri)


def test_every_version_of_the_configuration_is_refused_and_no_other(models, record):
    mark(models, record, FOUND)
    for version in (1, 2):
        with pytest.raises(
            ValueError,
            match=rf"must not be privacy-preferred for models:/demo/{version}, .*{FOUND}",
        ):
            promote_model(
                f"models:/demo/{version}", "privacy-preferred", "because", tracking_uri=models
            )
        with pytest.raises(ValueError, match="demo-audit"):
            set_alias("demo", "privacy-preferred", version, tracking_uri=models)
        with pytest.raises(ValueError, match="must not be Privacy-Preferred"):
            promote_model(
                f"models:/demo/{version}", "Privacy-Preferred", "because", tracking_uri=models
            )
        set_alias("demo", "best-utility", version, tracking_uri=models)  # says nothing of privacy
    assert show_model("models:/demo/1", tracking_uri=models)["promotions"] == []
    promote_model("models:/demo/3", "privacy-preferred", "because", tracking_uri=models)


def test_an_alias_that_was_set_before_goes(models, record):
    set_alias("demo", "privacy-preferred", 3, tracking_uri=models)
    mark(models, record, FOUND)
    assert show_model("models:/demo@privacy-preferred", tracking_uri=models)["version"] == 3
    mark(models, record, FOUND, batch_size=512)
    with pytest.raises(ValueError, match="must exist in the registry"):
        show_model("models:/demo@privacy-preferred", tracking_uri=models)


def test_so_does_its_look_alike(models, record):
    set_alias("demo", "Privacy-Preferred", 1, tracking_uri=models)
    mark(models, record, FOUND)
    with pytest.raises(ValueError, match="must exist in the registry"):
        show_model("models:/demo@Privacy-Preferred", tracking_uri=models)


def test_a_new_audit_lifts_it(models, record):
    mark(models, record, FOUND)
    mark(models, record, None)
    mark(models, record, None)  # again changes nothing
    promote_model("models:/demo/1", "privacy-preferred", "audited again", tracking_uri=models)
    assert show_model("models:/demo@privacy-preferred", tracking_uri=models)["version"] == 1


def test_another_sweep_of_the_same_name_in_the_registry_is_left_alone(models, record, tracker):
    set_alarms("demo", "another", alarms(record, alarm=FOUND), tracking_uri=models)
    assert ALARM_TAG not in tracker._client.get_model_version("demo", "1").tags
