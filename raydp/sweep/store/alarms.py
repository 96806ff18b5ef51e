"""Alarms on a sweep's configurations, kept in its folder. An alarm keeps `privacy-preferred` away.

The newest audit of a configuration decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from raydp.search_spaces.configuration import Configuration, configuration_at
from raydp.sweep.store.json_files import read_json

if TYPE_CHECKING:
    from raydp.analysis import Selection

AUDITS_FILE = "audits.json"


class Finding(TypedDict):
    """An audited configuration, as by `point_of`, and its alarm as a sentence, or None."""

    configuration: Sequence[object]
    alarm: str | None


class Audit(TypedDict):
    """An entry of audits.json: the name of an audit, its time (ISO 8601) and its findings."""

    name: str
    at: str
    found: Sequence[Finding]


def audits_of(folder: Path) -> list[Audit]:
    """Return the audits of a sweep, the oldest first."""
    document = read_json(folder / AUDITS_FILE)
    return [] if document is None else cast(list[Audit], document["audits"])


def alarms_in(audit: Audit) -> dict[Configuration, str | None]:
    """Return each configuration of an audit -> its alarm, or None."""
    return {configuration_at(found["configuration"]): found["alarm"] for found in audit["found"]}


def alarms_of(folder: Path) -> dict[Configuration, str | None]:
    """Return each audited configuration -> the alarm of its newest audit, or None."""
    newest: dict[Configuration, str | None] = {}
    # The oldest audit comes first, so that the newest decides.
    for audit in audits_of(folder):
        newest |= alarms_in(audit)
    return newest


def alarm_of(folder: Path, selection: Selection) -> str | None:
    """Return the alarm of the selected configuration, if there is one."""
    return alarms_of(folder).get(selection.configuration)
