"""The documents of a sweep's folder: its plan and key, how far it is, and how its parts ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raydp.plugins.registries import resolve
from raydp.spec.sections.privacy import IGNORED
from raydp.sweep.store.disclosure import Disclosure
from raydp.sweep.store.json_files import Document, read_json, read_state, write_json
from raydp.sweep.store.noise_key import read_key
from raydp.sweep.store.runs import RunFiles
from raydp.sweep.store.state import DriverProgress, Plan, SearchEnd, SeedsEnd
from raydp.sweep.store.summary import ReleasedModels, SweepSummary
from raydp.sweep.store.written_spec import WrittenSpec

CURRENT_SECONDS = 60.0
"""Age up to which progress.json counts.

The driver of an older file has ended without removing it.
"""


@dataclass(frozen=True, kw_only=True)
class SweepDocuments(WrittenSpec, RunFiles):
    """The part of `SweepFolder` that reads and writes what is known of all runs together."""

    search_end = Document("search.json", SearchEnd.from_json, SearchEnd.to_json)
    """How the sweep's search ended; None before its end, or if there is no search."""
    seeds_end = Document("seeds.json", SeedsEnd.from_json, SeedsEnd.to_json)
    """How adaptive seeds ended; None before their end, or if all seeds are run."""
    decision = Document[str]("selected.json", lambda d: str(d["run_id"]), lambda r: {"run_id": r})
    """The id of the run that a private selection has chosen; None before the choice."""
    released = Document("released.json", ReleasedModels.from_json, ReleasedModels.to_json)
    """The joint cost of all registered models; None before the end of the sweep."""
    summary = Document("summary.json", SweepSummary.from_json, SweepSummary.to_json)
    """The summary of the sweep; None before its end, or if nothing was selected."""
    end = Document[str | None]("ended.json", lambda d: d["state"], lambda state: {"state": state})
    """The state of the files at the sweep's end (`raydp.sweep.store.unchanged`)."""
    budget_entries = Document[list[str]](
        "budget.json", lambda d: d["entries"], lambda e: {"entries": e}
    )
    """The sweep's entries in the ledger of its store, as texts; None before the first."""
    secret_counts = Document[Mapping[str, int]]("secret_counts.json", dict, dict)
    """Name of a secret -> number of training examples that contain it. As private as the data."""

    @property
    def _key_file(self) -> Path:
        return self.path / "sweep.key"

    def key(self) -> bytes:
        """Read the sweep's secret key.

        Raises:
            ValueError: see `read_key`.
        """
        return read_key(self._key_file, self.privacy(), self.plan().key_fingerprint)

    def plan(self) -> Plan:
        """Read the plan of the sweep.

        Raises:
            ValueError: there is no plan, or an unknown version of raydp wrote it.
        """
        document = read_json(self.path / "plan.json")
        if document is None:
            raise ValueError(
                f"SWEEP must have its plan.json, got {str(self.path)!r} without. Restore the file, "
                "or start a new sweep."
            )
        return Plan.from_json(document, self.path.name)

    def _write_plan(self, plan: Plan) -> None:
        write_json(self.path / "plan.json", plan.to_json())

    def tracking_run(self) -> str | None:
        """Return the id of the sweep's run in MLflow; None before it has one."""
        return read_state(self.path / "tracking.json", lambda document: str(document["parent_run"]))

    def set_tracking_run(self, run: str) -> None:
        """Write the id of the sweep's run in MLflow, and forget deliveries to an earlier store."""
        # Remove the marks first: a kill in between delivers runs again, and never loses one.
        for run_id in self.deliveries():
            self.remove_delivery(run_id)
        write_json(self.path / "tracking.json", {"parent_run": run})

    def progress(self) -> DriverProgress | None:
        """Return how far the sweep is; None if no driver has written it in the last minute.

        A file of the future is of a clock that was set back, and may be of any age.
        """
        path = self.path / "progress.json"
        with suppress(FileNotFoundError):  # the driver has just ended
            age = time.time() - path.stat().st_mtime
            ago = max(0.0, age)
            if abs(age) < CURRENT_SECONDS:
                return read_state(
                    path, lambda document: DriverProgress.from_json(document, seconds_ago=ago)
                )
        return None

    def set_progress(self, progress: DriverProgress | None) -> None:
        """Write how far the sweep is. None removes the file, at the driver's end."""
        path = self.path / "progress.json"
        path.unlink(missing_ok=True) if progress is None else write_json(path, progress.to_json())

    def disclosure(self) -> Disclosure:
        """Return which of the sweep's runs may be shown, by the policy of its `privacy.tuning`."""
        tuning = self.privacy().tuning
        if tuning == IGNORED:
            return Disclosure()
        disclosure: Disclosure = resolve("policies", tuning).disclosure(self.decision())
        return disclosure

    def reopen(self) -> None:
        """Remove what an earlier end wrote about all runs together, because further runs follow."""
        self.remove_selection()
        self.released.remove()

    def remove_selection(self) -> None:
        """Remove the summary and report of an earlier end, because this end selects nothing."""
        self.summary.remove()
        self.report.unlink(missing_ok=True)

    def skipped_runs(self) -> set[str]:
        """Return the planned runs that a search or adaptive seeds left out.

        The set is empty before their end.
        """
        search, seeds = self.search_end(), self.seeds_end()
        left_out = set() if seeds is None else set(seeds.left_out)
        if search is None or not search.skipped:
            return left_out
        return left_out | {
            t.run_id for t in self.plan().trials if t.configuration in search.skipped
        }

    @property
    def report(self) -> Path:
        """Return the file of the sweep's report."""
        return self.path / "report.html"
