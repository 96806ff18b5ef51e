"""Runs the sweeps of a study, and puts together what they show."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd
from rich.console import Console

from raydp.extensions.study.document import Cell, Study
from raydp.extensions.study.points import begun, folder_of
from raydp.privacy import Event, composed
from raydp.privacy.accounting.documents import ComposedCost
from raydp.search_spaces.settings import settings_in_words
from raydp.sweep.api import Sweep, planned
from raydp.sweep.driver import run_sweep
from raydp.sweep.planning.plan import SweepPlan
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts
from raydp.system.cache import cache_dir

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    """A cell with its plan."""

    cell: Cell
    plan: SweepPlan

    @property
    def compute(self) -> int:
        """Return b·T of all runs that are certain."""
        return sum(trial.batch_size * trial.num_steps for trial in self.plan.first_pass)

    def row(self) -> dict[str, object]:
        """Return the row of the cell in the plan's table."""
        sigmas = [trial.noise_multiplier for trial in self.plan.first_pass]
        epsilons = [self.plan.privacy[t.run_id].accounted.epsilon for t in self.plan.first_pass]
        facts = self.plan.facts
        return {
            **self.cell.values,
            "runs": len(self.plan.first_pass),
            "n": facts.num_units,
            "smallest σ": min(sigmas),
            "largest σ": max(sigmas),
            "largest ε": max(epsilons),
            "cost_tokens": round(self.compute * facts.num_tokens / facts.num_units),
        }


class JointModels(ComposedCost):
    """The joint cost of all models on the same data, and their number."""

    models: int


@dataclass(frozen=True, kw_only=True)
class CellEnd:
    """How a cell's sweep has ended.

    Attributes:
        state: "finished", or "failed" if an error ended it.
        reason: why it failed, or why nothing was selected.
    """

    cell: Cell
    state: str
    reason: str | None = None


def plan_study(study: Study, say: Callable[[str], object]) -> list[PlannedCell]:
    """Plan every cell, the largest compute first.

    Raises:
        ValueError: a cell cannot be run. The message names it.
    """
    made = []
    for number, cell in enumerate(study.cells, 1):
        say(f"planning sweep {number} of {len(study.cells)}: {settings_in_words(cell.values)}")
        try:
            made.append(PlannedCell(cell=cell, plan=planned(cell.spec)[0]))
        except ValueError as error:
            raise ValueError(f"{settings_in_words(cell.values)}: {error}") from error
    return sorted(made, key=lambda each: -each.compute)


def run_study(study: Study, *, resume: bool, console: Console) -> list[CellEnd]:
    """Run every sweep of a study that has not ended, the largest first.

    A sweep that fails does not end the study.

    Raises:
        ValueError: a cell cannot be run, or the study was started before and `resume` is false. In
            this case nothing was trained.
        Interrupted: Ctrl-C or SIGTERM came. The study can be resumed.
    """
    if not resume and begun(study):
        raise ValueError(
            f"STUDY {study.name} was started before. Add --resume to go on, or give it another name."
        )
    with console.status("planning") as status:
        cells = plan_study(study, status.update)
    ends = []
    for number, each in enumerate(cells, 1):
        console.print(
            f"sweep {number} of {len(cells)}: {settings_in_words(each.cell.values)}",
            markup=False,
            style="bold",
        )
        ends.append(_run(each.cell, console))
    return ends


def _run(cell: Cell, console: Console) -> CellEnd:
    """Run a cell, or go on where it stopped."""
    resume = SweepFolder.exists(cell.spec)
    if resume and _is_over(folder_of(cell)):
        return CellEnd(cell=cell, state="finished")
    try:
        result = run_sweep(cell.spec, resume=resume, console=console)
    except Exception as error:  # noqa: BLE001 - the other sweeps of the study go on
        LOGGER.warning("the sweep %s has failed: %s", settings_in_words(cell.values), error)
        return CellEnd(cell=cell, state="failed", reason=str(error))
    return CellEnd(cell=cell, state="finished", reason=result.reason)


def _is_over(folder: SweepFolder) -> bool:
    """Return whether a sweep has selected and has no run left."""
    return folder.summary() is not None and not counts(folder).pending


def cell_rows(ends: Sequence[CellEnd]) -> list[dict[str, object]]:
    """Return a row for each cell: its values, its state, and what it selected."""
    rows = []
    for end in ends:
        row: dict[str, object] = {**end.cell.values, "state": end.state}
        if end.state == "finished" and end.reason is None:
            selected = Sweep(end.cell.spec).result.selected
            assert selected is not None, "a finished sweep without a reason has selected"
            row |= {
                **selected.configuration.to_json(),
                "utility_loss": selected.utility_loss,
                "score": selected.score,
                "sure": None if selected.decision is None else selected.decision.state,
            }
        rows.append(row)
    return rows


def joint_epsilon(study: Study, points: pd.DataFrame) -> dict[str, JointModels]:
    """Return ε of all models of cells that share their data, by the digest of the data.

    Returns:
        digest -> joint cost. δ is the largest of the cells.
    """
    found: dict[str, list[tuple[Event, float, str]]] = {}
    for cell in begun(study):
        plan = folder_of(cell).plan()
        done = points[(points["cell"] == cell.spec.name) & (points["status"] == "finished")]
        for run_id in done["run_id"]:
            event = plan.privacy[run_id].mechanism.event
            entry = (event, plan.delta, cell.spec.privacy.accountant)
            found.setdefault(plan.facts.content_hash, []).append(entry)
    joint: dict[str, JointModels] = {}
    for digest, entries in found.items():
        events, deltas, accountants = zip(*entries, strict=True)
        cost = composed(
            list(events), max(deltas), accountants[0], cache_dir=cache_dir() / "guarantee"
        )
        joint[digest] = {**cost, "models": len(events)}
    return joint
