"""Runs the sweeps of a study, and puts together what they show."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pandas as pd
from rich.console import Console

from raydp.extensions.study.document import Cell, Study
from raydp.extensions.study.joint import joint_source
from raydp.extensions.study.points import begun, folder_of
from raydp.extensions.study.seeds import OPEN, StudyQuestion
from raydp.privacy import Event, composed
from raydp.privacy.accounting.documents import ComposedCost
from raydp.search_spaces.settings import settings_in_words
from raydp.spec.document import SweepSpec
from raydp.sweep.api import Sweep, planned
from raydp.sweep.driver import StartedSweep, planned_sweep, print_plan, run_together, running
from raydp.sweep.ending.result import SweepResult
from raydp.sweep.planning.inputs import KnownInputs
from raydp.sweep.planning.plan import SweepPlan
from raydp.sweep.planning.planned import PlannedSweep
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
    """The joint cost of all models on the same data, their number, and the names of their sweeps."""

    models: int
    sweeps: list[str]


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
    made, known = [], KnownInputs()
    for number, cell in enumerate(study.cells, 1):
        say(f"planning sweep {number} of {len(study.cells)}: {settings_in_words(cell.values)}")
        try:
            made.append(PlannedCell(cell=cell, plan=planned(cell.spec, known)[0]))
        except ValueError as error:
            raise ValueError(f"{settings_in_words(cell.values)}: {error}") from error
    return sorted(made, key=lambda each: -each.compute)


def run_study(study: Study, *, resume: bool, console: Console) -> list[CellEnd]:
    """Run the runs of every sweep that has not ended, the largest first, on one cluster.

    A sweep that fails does not end the study.

    Returns:
        How each sweep ended, in the order of the study's cells.

    Raises:
        ValueError: a cell cannot be run, or the study was started before and `resume` is false. In
            this case nothing was trained.
        Interrupted: Ctrl-C or SIGTERM came. The study can be resumed.
    """
    if not resume and begun(study):
        raise ValueError(
            f"STUDY {study.name} was started before. Add --resume to go on, or give it another name."
        )
    left = {cell.spec.name: cell.spec for cell in study.cells if not _is_over(cell)}
    ends = _run(study, left, console) if left else {}
    return [_end_of(cell, ends.get(cell.spec.name)) for cell in study.cells]


def _run(
    study: Study, specs: Mapping[str, SweepSpec], console: Console
) -> dict[str, SweepResult | Exception]:
    """Run sweeps with one queue on one cluster, and go on with those that were started.

    Args:
        specs: name in the queue -> the sweep.
    """
    known, made = KnownInputs(), dict[str, PlannedSweep]()
    for name, spec in specs.items():
        resume = SweepFolder.exists(spec)
        try:
            made[name] = planned_sweep(spec, resume=resume, console=console, known=known)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    said, question = set[str](), StudyQuestion.of(study)
    for each in made.values():
        print_plan(each.plan, console, said)
    ends = dict[str, SweepResult | Exception]()
    with ExitStack() as folders:
        sweeps = dict[str, StartedSweep]()
        for name, each in made.items():
            resume = SweepFolder.exists(each.spec)
            open_folder = running(
                each, resume=resume, console=console, queue_name=name, question=question
            )
            try:
                sweeps[name] = folders.enter_context(open_folder)
            except Exception as error:  # noqa: BLE001 - the other sweeps of the study go on
                ends[name] = error
        if sweeps:
            found = run_together(list(sweeps.values()), console, source_fn=joint_source)
            ends |= dict(zip(sweeps, found, strict=True))
    return ends


def _end_of(cell: Cell, end: SweepResult | Exception | None) -> CellEnd:
    """Return how a cell has ended; None if it had ended before."""
    if isinstance(end, Exception):
        LOGGER.warning("the sweep %s has failed: %s", settings_in_words(cell.values), end)
        return CellEnd(cell=cell, state="failed", reason=str(end))
    return CellEnd(cell=cell, state="finished", reason=None if end is None else end.reason)


def _is_over(cell: Cell) -> bool:
    """Return whether a cell's sweep has selected, has no run left, and is asked for no further."""
    if not SweepFolder.exists(cell.spec):
        return False
    folder = folder_of(cell)
    before = folder.spec()
    asks_more = (before.seeds, before.privacy) != (cell.spec.seeds, cell.spec.privacy)
    return folder.summary() is not None and not counts(folder).pending and not asks_more


def cell_rows(ends: Sequence[CellEnd]) -> list[dict[str, object]]:
    """Return a row for each cell: its values, its state, and what it selected."""
    rows = []
    for end in ends:
        row: dict[str, object] = {**end.cell.values, "state": end.state, "reason": end.reason}
        if end.state == "finished" and (seeds := folder_of(end.cell).seeds_end()) is not None:
            row["seeds"] = seeds.state
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


def left_open(study: Study) -> list[str]:
    """Return why the seeds of the shared question ended without its answer, if they did."""
    if StudyQuestion.of(study) is None:
        return []
    found = [folder_of(cell).seeds_end() for cell in begun(study)]
    return list(
        dict.fromkeys(e.reason for e in found if e and e.reason and e.reason.startswith(OPEN))
    )


def joint_epsilon(study: Study, points: pd.DataFrame) -> dict[str, JointModels]:
    """Return ε of all models of cells that share their data, by the digest of the data.

    Returns:
        digest -> joint cost. δ is the largest of the cells.
    """
    found: dict[str, list[tuple[Event, float, str, str]]] = {}
    for cell in begun(study):
        plan = folder_of(cell).plan()
        done = points[(points["cell"] == cell.spec.name) & (points["status"] == "finished")]
        for run_id in done["run_id"]:
            event = plan.privacy[run_id].mechanism.event
            entry = (event, plan.delta, cell.spec.privacy.accountant, cell.spec.name)
            found.setdefault(plan.facts.content_hash, []).append(entry)
    joint: dict[str, JointModels] = {}
    for digest, entries in found.items():
        events, deltas, accountants, sweeps = zip(*entries, strict=True)
        cost = composed(
            list(events), max(deltas), accountants[0], cache_dir=cache_dir() / "guarantee"
        )
        joint[digest] = {**cost, "models": len(events), "sweeps": [*dict.fromkeys(sweeps)]}
    return joint
