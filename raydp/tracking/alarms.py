"""Audits that refuted the stated ε of registered models: a tag on their versions, and no `privacy-preferred`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from raydp.tracking.store import open_store

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

    from raydp.tracking.store import Store

PRIVACY_PREFERRED = "privacy-preferred"
ALARM_TAG = "audit_alarm"

Configuration = tuple[int, int, float]
"""b, T, η."""


def set_alarms(
    registered_model: str, sweep: str, alarms: Mapping[Configuration, str | None], *, tracking_uri: str
) -> None:
    """Mark every version of a sweep's configurations by its audit, or take the mark away.

    A version with an alarm loses the alias `privacy-preferred` and cannot get it.

    Args:
        registered_model, sweep: whose versions.
        alarms: (b, T, η) -> what the newest audit found, in a sentence; None where it found nothing.
    """
    store = open_store(tracking_uri)
    versions = list(store.client.search_model_versions(f"name = '{registered_model}' and tags.sweep = '{sweep}'"))
    for version in versions:
        configuration = _configuration(version)
        if configuration not in alarms:
            continue
        alarm = alarms[configuration]
        if alarm is not None:
            store.client.set_model_version_tag(registered_model, version.version, ALARM_TAG, alarm)
        elif ALARM_TAG in version.tags:
            store.client.delete_model_version_tag(registered_model, version.version, ALARM_TAG)
    alarmed = {str(v.version) for v in versions if alarms.get(_configuration(v)) is not None}
    if not alarmed:
        return
    for alias, version in store.client.get_registered_model(registered_model).aliases.items():
        if _is_preferred(alias) and str(version) in alarmed:
            store.client.delete_registered_model_alias(registered_model, alias)


def check_no_alarm(store: Store, name: str, version: str, alias: str) -> None:
    """Refuse `privacy-preferred` for a version whose ε an audit has refuted.

    Raises:
        ValueError: it has; names the audit and how to lift the alarm.
    """
    alarm = store.client.get_model_version(name, version).tags.get(ALARM_TAG)
    if _is_preferred(alias) and alarm is not None:
        raise ValueError(f"alias must not be {alias} for models:/{name}/{version}, got {alias}: {alarm}")


def _is_preferred(alias: str) -> bool:
    """Whether an alias is privacy-preferred, or the same in other letters, which nobody would tell apart."""
    return alias.casefold() == PRIVACY_PREFERRED


def _configuration(version: ModelVersion) -> Configuration:
    tags = version.tags
    return int(tags["batch_size"]), int(tags["num_steps"]), float(tags["learning_rate"])
