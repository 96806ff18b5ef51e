"""The sweeps under a storage folder, with their progress and their selections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.settings import settings_in_words
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts
from raydp.sweep.store.summary import RunCounts, SelectedConfiguration
from raydp.system.output import print_table, stdout

COUNTS = ("runs", "finished", "failed", "stopped", "skipped", "pending")


@dataclass(frozen=True, kw_only=True)
class ListedSweep:
    """A sweep in the list.

    Attributes:
        folder: the sweep's folder, whose name is the sweep's name.
        counts: numbers of runs by status; None if they are missing (see `note`).
        selected: the selected configuration; None before the end.
        began, changed: times (ISO 8601).
        note: why a figure is missing, or None.
    """

    folder: Path
    counts: RunCounts | None
    selected: SelectedConfiguration | None
    began: str
    changed: str
    note: str | None

    def numbers(self) -> dict[str, int | None]:
        """Return the numbers of runs by status, each None if they are missing."""
        if self.counts is None:
            return dict.fromkeys(COUNTS)
        return {name: self.counts.numbers.get(name, 0) for name in COUNTS}

    def to_json(self) -> dict[str, object]:
        """Return the object of `raydp list --json`."""
        return {
            "sweep": self.folder.name,
            "folder": self.folder,
            **self.numbers(),
            "selected": None if self.selected is None else self.selected.figures(),
            "began": self.began,
            "changed": self.changed,
            "note": self.note,
        }


def list_sweeps(storage: str) -> list[ListedSweep]:
    """Describe every sweep under a storage folder. The sweep that changed last comes first.

    Raises:
        ValueError: the storage is a file.
    """
    root = Path(storage)
    if root.exists() and not root.is_dir():
        raise ValueError(
            f"--storage must be a folder, got {storage!r}, which is a file. Name the folder of "
            "sweeps."
        )
    sweeps = [_listed(SweepFolder(path=spec.parent)) for spec in root.glob("*/spec.yaml")]
    return sorted(sweeps, key=lambda sweep: (sweep.changed, sweep.folder.name), reverse=True)


def show_sweeps(storage: str, sweeps: Sequence[ListedSweep]) -> None:
    """Print the sweeps with their selected configurations as a table."""
    if not sweeps:
        stdout.print(
            f"no sweep in {storage!r}: `raydp sweep SPEC` starts one, and --storage names another "
            "folder",
            markup=False,
        )
        return
    # Leave out columns that are zero in every sweep.
    rare = ("stopped", "skipped")  # shown only if a sweep has such runs
    columns = {
        name
        for name in COUNTS
        if name not in rare or any(sweep.numbers()[name] for sweep in sweeps)
    }
    # One row for each sweep. Cells of a sweep without a selection stay empty.
    shown = [
        {
            "sweep": sweep.folder.name,
            **{name: number for name, number in sweep.numbers().items() if name in columns},
            **{
                name: getattr(sweep.selected and sweep.selected.configuration, name, None)
                for name in HYPERPARAMETERS
            },
            **_further(sweep, sweeps),
            "score": None if sweep.selected is None else sweep.selected.score,
            "changed": sweep.changed[:16].replace("T", " "),
            **({"note": sweep.note or ""} if any(other.note for other in sweeps) else {}),
        }
        for sweep in sweeps
    ]
    print_table(
        f"sweeps in {storage}, with their selected configurations",
        shown,
        keep=("changed",),
        spare=("score", "note"),
    )


def _further(sweep: ListedSweep, sweeps: Sequence[ListedSweep]) -> dict[str, object]:
    """Return the column of further fields, if a sweep's selected configuration has any."""
    if not any(
        other.selected is not None and other.selected.configuration.settings for other in sweeps
    ):
        return {}
    return {
        "further fields": ""
        if sweep.selected is None
        else settings_in_words(sweep.selected.configuration.settings)
    }


def _listed(folder: SweepFolder) -> ListedSweep:
    began, changed = folder.times()
    listed = ListedSweep(
        folder=folder.path,
        counts=None,
        selected=None,
        began=_time(began),
        changed=_time(changed),
        note=None,
    )
    # A damaged sweep is listed with the reason, and does not hide the others.
    try:
        summary = folder.summary()
        listed = replace(listed, selected=None if summary is None else summary.selected)
        disclosure = folder.disclosure()
        return replace(
            listed, counts=counts(folder) if disclosure.shows_runs else None, note=disclosure.remark
        )
    except (ValueError, LookupError, TypeError) as error:
        return replace(listed, note=f"cannot be read: {error}")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
