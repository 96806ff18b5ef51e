"""Runs the sweeps of a study, and puts together what they show."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from raydp.extensions.study.document import Cell, Study
from raydp.extensions.study.joint import joint_source
from raydp.extensions.study.points import begun, folder_of
from raydp.extensions.study.seeds import OPEN, StudyQuestion
from raydp.plugins.registries import service
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
from raydp.sweep.store.state import Plan
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


def require_place(study: Study) -> None:
    """Raise ValueError if the study's folder is that of a sweep, whose tables it would replace."""
    if SweepFolder.is_at(study.folder):
        raise ValueError(
            f"name must be that of no sweep in storage {str(study.folder.parent)!r}, got "
            f"{study.name!r}. Give the study another name."
        )


def cautions_of(study: Study) -> list[str]:
    """Return what keeps a study from its answer, although it can be run."""
    seeds = min(len(cell.spec.seed_labels) for cell in study.cells)
    if study.limits.max_leak is None or seeds > 1:
        return []
    return [
        "limits.max_leak is asked of configurations with one seed, which do not tell their errors: "
        "which ε keeps to it will not be known. Give two seeds or more"
    ]


def plan_study(study: Study, say: Callable[[str], object]) -> list[PlannedCell]:
    """Plan every cell, the largest compute first.

    Raises:
        ValueError: a cell cannot be run. The message names it.
    """
    require_place(study)
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
    require_place(study)
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
    _require_same_data(study, made)
    said, question = set[str](), StudyQuestion.of(study)
    for caution in cautions_of(study):
        LOGGER.warning("%s", caution)
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


def _require_same_data(study: Study, made: Mapping[str, PlannedSweep]) -> None:
    """Check that cells with equal tasks have equal data, also those that ended before.

    Raises:
        ValueError: the data were changed in between.
    """
    first: dict[str, tuple[str, str]] = {}
    for cell in study.cells:
        spec, planned_now = cell.spec, made.get(cell.spec.name)
        if planned_now is None and not SweepFolder.exists(spec):
            continue
        facts = folder_of(cell).plan().facts if planned_now is None else planned_now.plan.facts
        # A task depends on its own section, on the tokenizer and on the unit.
        same = json.dumps([spec.task.as_dict(), spec.model.name, spec.privacy.unit], sort_keys=True)
        name, data = first.setdefault(same, (spec.name, facts.content_hash))
        if data != facts.content_hash:
            raise ValueError(
                f"STUDY must have equal data in all sweeps of a task, got others in {spec.name} than in "
                f"{name}: a file was changed. Restore it, or give the study another name."
            )


def _end_of(cell: Cell, end: SweepResult | Exception | None) -> CellEnd:
    """Return how a cell has ended; None if it had ended before."""
    if isinstance(end, Exception):
        LOGGER.warning("the sweep %s has failed: %s", settings_in_words(cell.values), end)
        return CellEnd(cell=cell, state="failed", reason=str(end))
    if end is not None and not end.counts.finished:
        return CellEnd(cell=cell, state="failed", reason=end.reason)
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


def joint_epsilon(study: Study) -> dict[str, JointModels]:
    """Return ε of all models in the study's folder that share their data and their unit.

    Sweeps of values that the study no longer has count too, and so do equal files that other
    sections divide or tokenise otherwise (see the service `data_labels`).

    Returns:
        A digest of the data -> joint cost. δ is the largest of the sweeps.
    """
    labels_of = service("data_labels", needed_by=None)
    groups = list[tuple[set[str], list[tuple[SweepFolder, Plan]]]]()
    own_names = [cell.spec.name for cell in study.cells]
    others = {path.parent.name for path in study.folder.glob("*/spec.yaml")} - {*own_names}
    for name in (*own_names, *sorted(others)):
        if not SweepFolder.is_at(study.folder / name):
            continue
        folder = SweepFolder.open(study.folder / name)
        plan, spec = folder.plan(), folder.spec()
        own = {plan.facts.content_hash} if labels_of is None else set(labels_of(spec, plan.facts))
        own = {f"{spec.privacy.unit} {label}" for label in own}
        joined = [group for group in groups if group[0] & own]
        groups = [group for group in groups if group not in joined]
        members = [sweep for _, sweeps in joined for sweep in sweeps]
        groups.append((own.union(*(labels for labels, _ in joined)), [*members, (folder, plan)]))
    return {plans[0][1].facts.content_hash: cost for _, plans in groups if (cost := _joint(plans))}


def _joint(sweeps: Sequence[tuple[SweepFolder, Plan]]) -> JointModels | None:
    """Return the joint cost of the finished runs of sweeps; None without one."""
    events, names = list[Event](), list[str]()
    for folder, plan in sweeps:
        results = [folder.result(trial.run_id) for trial in plan.trials]
        ended = [result.run_id for result in results if result is not None and result.finished]
        events += [plan.privacy[run_id].mechanism.event for run_id in ended]
        names += [folder.path.name] if ended else []
    if not events:
        return None
    delta = max(plan.delta for _, plan in sweeps)
    accountant = sweeps[0][0].spec().privacy.accountant
    cost = composed(events, delta, accountant, cache_dir=cache_dir() / "guarantee")
    return {**cost, "models": len(events), "sweeps": names}
