"""What audits found of a sweep's configurations, kept in the sweep's folder; the newest audit of each decides."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydp.sweep.store.json_files import read_json, write_json
from raydp.tracking import set_alarms

if TYPE_CHECKING:
    from analysis import Selection
    from raydp.spec.document import SweepSpec

AUDITS_FILE = "audits.json"
Configuration = tuple[int, int, float]


def note_audit(folder: Path, name: str, alarms: Mapping[Configuration, str | None]) -> None:
    """Write down what an audit found; a second call with the same finding changes nothing.

    Args:
        folder: of the audited sweep, which need not have run yet.
        name: of the audit.
        alarms: (b, T, η) of each audited configuration -> the alarm in a sentence, or None.
    """
    before = _audits(folder)
    found = [{"configuration": list(key), "alarm": alarm} for key, alarm in alarms.items()]
    if any(audit["name"] == name and audit["found"] == found for audit in before):
        return
    audits = [*before, {"name": name, "at": datetime.now(UTC).isoformat(), "found": found}]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / AUDITS_FILE, {"audits": audits})


def alarms_of(folder: Path) -> dict[Configuration, str | None]:
    """Every audited configuration with what its newest audit found."""
    newest: dict[Configuration, str | None] = {}
    for audit in _audits(folder):
        for entry in audit["found"]:
            b, t, rate = entry["configuration"]
            newest[(b, t, rate)] = entry["alarm"]
    return newest


def publish_alarms(spec: SweepSpec, folder: Path) -> None:
    """Mark the sweep's registered models by what its audits found."""
    if alarms := alarms_of(folder):
        tracking = spec.tracking
        set_alarms(tracking.registered_model, spec.name, alarms, tracking_uri=tracking.uri)


def alarm_of(folder: Path, selection: Selection) -> str | None:
    """The alarm of the selected configuration, if there is one."""
    chosen = selection.configuration
    return alarms_of(folder).get((chosen.batch_size, chosen.num_steps, chosen.learning_rate))


def _audits(folder: Path) -> list[dict[str, Any]]:
    audits: list[dict[str, Any]] = (read_json(folder / AUDITS_FILE) or {"audits": []})["audits"]
    return audits
