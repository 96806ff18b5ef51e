"""Write the alarms of an audit into the folder of the audited sweep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from raydp.search_spaces.configuration import Configuration, point_of
from raydp.sweep.store.alarms import AUDITS_FILE, Audit, Finding, alarms_in, audits_of
from raydp.sweep.store.json_files import write_json


def note_audit(
    folder: Path, name: str, alarms: Mapping[Configuration, str | None], canaries: object
) -> None:
    """Write the alarms of an audit. A second call with the same alarms changes nothing.

    Args:
        canaries: as `AuditReport.canaries_used`.
    """
    earlier = audits_of(folder)
    if any(audit["name"] == name and alarms_in(audit) == alarms for audit in earlier):
        return
    found = [Finding(configuration=point_of(of), alarm=alarm) for of, alarm in alarms.items()]
    at = datetime.now(UTC).isoformat()
    audit = {**Audit(name=name, at=at, found=found), "canaries": canaries}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / AUDITS_FILE, {"audits": [*earlier, audit]})
