"""Alarms that audits raised for a sweep's configurations, kept in the sweep's folder.

The newest audit decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from raydp.search_spaces.configuration import Configuration, configuration_at, point_of
from raydp.sweep.store.json_files import read_json, write_json

if TYPE_CHECKING:
    from raydp.analysis import Selection

AUDITS_FILE = "audits.json"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The alarms of one audit.

    Attributes:
        name: name of the audit.
        at: time of the audit (ISO 8601).
        alarms: each audited configuration -> the alarm as a sentence, or None.
        canaries: kind, number and seed of the canaries, and the access to training that the guesses
            need. It is empty for audits of early versions.
    """

    name: str
    at: str
    alarms: Mapping[Configuration, str | None]
    canaries: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return the entry of audits.json."""
        alarms = [
            {"configuration": point_of(key), "alarm": alarm} for key, alarm in self.alarms.items()
        ]
        return {"name": self.name, "at": self.at, "canaries": dict(self.canaries), "found": alarms}


def note_audit(
    folder: Path,
    name: str,
    alarms: Mapping[Configuration, str | None],
    canaries: Mapping[str, object] | None = None,
) -> None:
    """Write the alarms of an audit. A second call with the same alarms changes nothing.

    Args:
        folder: the folder of the audited sweep, which need not have run yet.
        name: the name of the audit.
        alarms: each audited configuration -> the alarm as a sentence, or None.
        canaries: what the audit's canaries were, see `Audit`.
    """
    earlier = _audits(folder)
    if any(audit.name == name and audit.alarms == alarms for audit in earlier):
        return
    audit = Audit(
        name=name, at=datetime.now(UTC).isoformat(), alarms=alarms, canaries=canaries or {}
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / AUDITS_FILE, {"audits": [each.to_json() for each in [*earlier, audit]]})


def alarms_of(folder: Path) -> dict[Configuration, str | None]:
    """Return each audited configuration -> the alarm of its newest audit, or None."""
    newest: dict[Configuration, str | None] = {}
    # The oldest audit comes first, so that the newest decides.
    for audit in _audits(folder):
        newest |= audit.alarms
    return newest


def alarm_of(folder: Path, selection: Selection) -> str | None:
    """Return the alarm of the selected configuration, if there is one."""
    return alarms_of(folder).get(selection.configuration)


def _audits(folder: Path) -> list[Audit]:
    """Read the audits of a sweep, the oldest first."""
    document = read_json(folder / AUDITS_FILE)
    return [
        Audit(
            name=audit["name"],
            at=audit["at"],
            alarms={
                configuration_at(entry["configuration"]): entry["alarm"] for entry in audit["found"]
            },
            canaries=audit.get("canaries", {}),
        )
        for audit in (() if document is None else document["audits"])
    ]
