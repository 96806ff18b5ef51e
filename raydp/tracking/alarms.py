"""Alarms on registered models: reasons that keep `privacy-preferred` away, such as a refuted ε.

An alarm is a tag on a version.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlflow.entities.model_registry import ModelVersion

from raydp.search_spaces import Configuration
from raydp.search_spaces.settings import Settings
from raydp.tracking.delivery import answering
from raydp.tracking.promotions import aliases_of, claims_privacy, take_away
from raydp.tracking.records import tags_of
from raydp.tracking.sealing.trust import ALARM_TAG
from raydp.tracking.store import open_store


@answering()
def set_alarms(
    registered_model: str,
    sweep: str,
    alarms: Mapping[Configuration, str | None],
    *,
    tracking_uri: str,
) -> None:
    """Set or remove the alarm of every version of a sweep's configurations.

    A version with an alarm loses the alias `privacy-preferred`, which is recorded, and cannot get
    it again.

    Args:
        registered_model, sweep: the registered model and the sweep of the versions.
        alarms: configuration -> its newest alarm, as a sentence; None if there is none now.
    """
    if not alarms:
        return
    store = open_store(tracking_uri)
    versions = list(
        store.client.search_model_versions(
            f"name = '{registered_model}' and tags.sweep = '{sweep}'"
        )
    )
    # Set the tag on the versions of these configurations, or remove an older alarm.
    for version in versions:
        configuration = _configuration(version)
        if configuration is None or configuration not in alarms:
            continue
        alarm = alarms[configuration]
        if alarm is not None:
            store.client.set_model_version_tag(registered_model, version.version, ALARM_TAG, alarm)
        elif ALARM_TAG in version.tags:
            store.client.delete_model_version_tag(registered_model, version.version, ALARM_TAG)
    # Take the alias away from versions with an alarm. Other configurations keep what they have.
    by_version = {
        str(v.version): alarms.get(made)
        for v in versions
        if (made := _configuration(v)) is not None
    }
    alarmed = {number: alarm for number, alarm in by_version.items() if alarm is not None}
    if not alarmed:
        return
    for alias, number in aliases_of(store, registered_model).items():
        if claims_privacy(alias) and number in alarmed:
            take_away(store, registered_model, alias, number, alarmed[number])


def _configuration(version: ModelVersion) -> Configuration | None:
    """Return the configuration in a version's tags; None if somebody damaged them."""
    tags = tags_of(version)
    try:
        return Configuration(
            batch_size=int(tags["batch_size"]),
            num_steps=int(tags["num_steps"]),
            learning_rate=float(tags["learning_rate"]),
            settings=Settings.parse(tags.get("settings", "")),
        )
    except (KeyError, ValueError):
        return None
