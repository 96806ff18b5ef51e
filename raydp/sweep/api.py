"""Sweeps from Python. The functions do what the commands do, and return objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import pandas as pd

from raydp import analysis
from raydp.analysis.selection.own_rules import GivenRule
from raydp.analysis.selection.rules import constrained_rule
from raydp.analysis.tables.notebook import html_table
from raydp.plugins.registries import resolve, service
from raydp.plugins.rules import asked_rule
from raydp.privacy.records.cross_check import cross_check
from raydp.spec.document import SweepSpec
from raydp.spec.reading import DEMO, load_spec
from raydp.spec.sections import Bounds
from raydp.sweep.ending.result import SweepResult
from raydp.sweep.ending.sweep_selection import of_sweep
from raydp.sweep.planning.sources import folder_of_spec, is_spec
from raydp.sweep.planning.start import check_plan
from raydp.sweep.policy import SweepPolicy
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import POINTS_FILE, counts, points_table
from raydp.sweep.store.source import PointsSource, rule_of, with_given
from raydp.sweep.store.summary import RunCounts
from raydp.system.imports import imported
from raydp.system.output import stderr

if TYPE_CHECKING:
    from raydp.sweep.engine.tune.callbacks import Callback
    from raydp.sweep.planning.inputs import KnownInputs
    from raydp.sweep.planning.plan import SweepPlan
    from raydp.tasks.task import Task


class Sweep:
    """One sweep.

    Args:
        spec: a YAML file, its content as a mapping, or a checked spec; by default the embedded one.

    Raises:
        ValueError: the spec has mistakes. The message names each mistake and what to change.

    Example:
        sweep = Sweep("sweep.yaml")
        sweep.plan()  # σ, ε and cost of every configuration
        selected = sweep.run().selected
    """

    def __init__(self, spec: str | Path | Mapping[str, object] | SweepSpec | None = None) -> None:
        self.spec = (
            spec if isinstance(spec, SweepSpec) else load_spec(spec if spec is not None else DEMO)
        )
        self._path = Path(self.spec.storage) / self.spec.name

    @classmethod
    def open(
        cls, sweep: str | Path | Mapping[str, object] | SweepSpec, *, storage: str = "raydp_runs"
    ) -> Sweep:
        """Open a sweep that was started before: running, interrupted or ended.

        Args:
            sweep: its name under storage, its folder, or its spec (a YAML file, a mapping or a
                checked spec).
            storage: the folder that sweeps live in, for a name.

        Raises:
            ValueError: there is no such sweep. The message names the sweeps beside it.
        """
        if isinstance(sweep, Mapping | SweepSpec):
            opened = cls(sweep)
            SweepFolder.open(opened._path)
            return opened
        folder = sweep_folder(sweep, storage)
        opened = cls(folder.spec())
        opened._path = folder.path
        return opened

    def __repr__(self) -> str:
        return f"Sweep({self.spec.name!r}, folder={str(self._path)!r})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        numbers = self.status().numbers if self.begun else {}
        runs = ", ".join(f"{number} {name}" for name, number in numbers.items()) or "not begun"
        return html_table(
            {"name": self.spec.name, "folder": str(self._path), "runs": runs}, "Sweep"
        )

    def run(self, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> SweepResult:
        """Run the sweep to its end, or resume it where it stopped.

        Args:
            resume: resume a sweep that was started before.
            callbacks: callbacks of Ray Tune, such as the loggers for Weights & Biases, TensorBoard
                or Comet. Every run is a Tune trial. A callback sees the run's config (b, T, η, σ,
                seed), its step metrics during training, and its utility and scores at its end.
                These are computed on private data, and ε does not cover them.

        Raises:
            ValueError: spec, model, data or folder is wrong. In this case nothing was trained.
            KeyboardInterrupt: Ctrl-C came. Running runs have saved their state, and `resume` goes
                on from there.
        """
        # A resume may have nothing to train, so only a new sweep starts the server early.
        if not resume and (warm_up := service("warm_up", needed_by=None)):
            warm_up(self.spec.cluster)
        with stderr.status("loading the libraries"):
            imported("raydp.sweep.driver")
        from raydp.sweep.driver import run_sweep

        return run_sweep(self.spec, resume=resume, console=stderr, callbacks=callbacks)

    @property
    def begun(self) -> bool:
        """Return whether the sweep was started before."""
        return SweepFolder.exists(self.spec)

    def plan(self) -> pd.DataFrame:
        """Return every configuration with n, q, σ, ε, δ, C, U and cost. Nothing is trained."""
        return plan(self.spec)

    @property
    def folder(self) -> SweepFolder:
        """Return the sweep's folder on disk."""
        return SweepFolder.open(self._path)

    def points(self) -> pd.DataFrame:
        """Return the points table of the runs so far."""
        return points_table(self.folder)

    @property
    def result(self) -> SweepResult:
        """Return the result of the sweep as it stands, whether it has ended or not."""
        folder, numbers = self.folder, self.status()
        summary, chosen = folder.summary(), list[analysis.Selection]()
        if summary is not None:
            chosen = selections(PointsSource(folder=folder), [None, "best-utility"])
        return SweepResult(
            folder=folder.path,
            counts=numbers,
            selected=chosen[0] if chosen else None,
            best_utility=chosen[-1] if chosen else None,
            reason=None if summary is not None else "the sweep has not ended with a selection",
            report=folder.report if folder.report.is_file() else None,
            interrupted=numbers.pending > 0,
        )

    def select(
        self,
        *,
        score: str | None = None,
        worst_case: bool = False,
        rule: GivenRule | None = None,
        **bounds: Unpack[Bounds],
    ) -> analysis.Selection:
        """Select a configuration from the finished runs.

        The arguments are those of `raydp.select`.
        """
        return select(self._path, score=score, worst_case=worst_case, rule=rule, **bounds)

    def status(self) -> RunCounts:
        """Return the numbers of runs by status, and the failures with their reasons."""
        return counts(self.folder)


def plan(spec: str | Path | Mapping[str, object] | SweepSpec) -> pd.DataFrame:
    """Check and calibrate a sweep without training anything.

    Returns:
        One row per configuration. `.attrs` holds warnings, the configurations that a named space
        left out, the task's facts, each run's record, and remarks on the meaning of ε and σ.
    """
    with stderr.status("reading the spec and loading the libraries"):
        checked = spec if isinstance(spec, SweepSpec) else load_spec(spec)
    not_now = check_plan(checked)
    table = make_table(planned(checked)[0])
    table.attrs["warnings"] += not_now
    return table


def planned(spec: SweepSpec, known: KnownInputs | None = None) -> tuple[SweepPlan, Task]:
    """Return a sweep's plan and its task; `known` as for `build_task`."""
    from raydp.sweep.planning.planned import PlannedSweep

    made = PlannedSweep.of(spec, stderr, known)
    return made.plan, made.task


def make_table(planned: SweepPlan) -> pd.DataFrame:
    """Return a plan as the table that `plan` describes."""
    from raydp.sweep.planning.warnings import joint_warnings

    table = pd.DataFrame(planned.rows())
    with stderr.status("adding up the runs"):
        # The joint cost counts the runs that are certain to be made.
        records = [planned.privacy[trial.run_id] for trial in planned.first_pass]
        table.attrs["records"] = dict(zip(planned.first_pass, records, strict=True))
        table.attrs["warnings"] = [*planned.warnings, *joint_warnings(planned.first_pass, records)]
    table.attrs["rejected"] = [f"{r.configuration}: {r.reason}" for r in planned.rejected]
    table.attrs["facts"] = planned.facts
    table.attrs["note"] = planned.note
    table.attrs["remarks"] = planned.remarks()
    with stderr.status("asking a second accountant"):
        checked = cross_check(planned.privacy.values())
    table.attrs["remarks"] += [] if checked is None else [checked]
    return table


def plan_rows(table: pd.DataFrame) -> list[dict[str, object]]:
    """Return the objects of `raydp plan --json`: a plan's rows, each with the sweep's facts.

    Returns:
        One object per configuration: the columns, "data" (examples, units and the task's notes:
        counts and caveats), "warnings" (each with rule, value and remedy) and "remarks" (the
        meaning of ε and σ). The last three are equal in all objects.
    """
    facts = table.attrs["facts"]
    counted = {name: getattr(facts, name) for name in ("num_examples", "num_units", "privacy_unit")}
    warnings = [caution.to_json() for caution in table.attrs["warnings"]]
    # Each object has the facts of the whole sweep, so that it can be read alone.
    whole = {
        "data": {**counted, **facts.notes},
        "warnings": warnings,
        "remarks": table.attrs["remarks"],
    }
    return [
        {**{str(name): value for name, value in row.items()}, **whole}
        for row in table.to_dict("records")
    ]


def select(
    points: str | Path | pd.DataFrame,
    *,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    rule: GivenRule | None = None,
    **bounds: Unpack[Bounds],
) -> analysis.Selection:
    """Select a configuration from a points table or a sweep.

    Args:
        points: a points table, its file, or a sweep by its folder, its name under storage, or its
            spec.
        storage: the folder that sweeps live in, for a name.
        score: the score to select by, measured in training or later; by default the sweep's own.
        worst_case: use a model's largest value over its secrets. This needs a sweep, or
            secrets.parquet beside the file.
        rule: name of the rule, `file.py:NAME`, a function or a tuple of steps (see
            `raydp.analysis.selection.own_rules.own_rule`); by default the sweep's own.
        bounds: constraints, as in `raydp.analysis.select`. A sweep's own constraints apply if no
            others are given.

    A sweep whose runs may not be shown (`privacy.tuning`) has one answer, the released model. It
    refuses another rule, score or constraint.
    """
    # A table alone has no spec behind it, so only the given rule and constraints apply.
    if isinstance(points, pd.DataFrame):
        table = points if score is None else analysis.with_score(points, score)
        return analysis.select(table, rule=rule_of(None, rule), **with_given(None, bounds))
    source = source_of(points, storage)
    return selections(source, [rule], score=score, worst_case=worst_case, **bounds)[0]


def selections(
    source: PointsSource,
    rules: Sequence[GivenRule | None],
    *,
    score: str | None = None,
    worst_case: bool = False,
    **bounds: Unpack[Bounds],
) -> list[analysis.Selection]:
    """Return what `select` returns for each rule, in their order, of equal rules one.

    Of a sweep whose runs may not be shown, only the first rule counts.
    """
    asked = [None if rule is None else asked_rule(rule) for rule in rules]
    # A sweep whose runs may not be shown chose once, and its ε covers this choice alone.
    if source.folder is not None and not source.shows_runs:
        policy: type[SweepPolicy] = resolve("policies", source.folder.privacy().tuning)
        given = {"score": score, "worst_case": worst_case or None, "rule": asked[0], **bounds}
        return [policy.select(source.folder, **given)]
    # A rule may bound accuracies, which an area under a curve is not.
    for rule in asked:
        constrained = None if rule is None else constrained_rule(rule)
        if rule is not None and constrained is not None and constrained.of_accuracies:
            _check_accuracies(source.folder, rule)
    # Load the points by the score that was asked for, with the spec's own rule and constraints.
    table = source.points(score=score, worst_case=worst_case, scored=False)
    found = source.selections(table, asked, score=score, worst_case=worst_case, bounds=bounds)
    # A selection from a sweep also knows the sweep's warnings and how to load its model.
    if (planned := source.planned) is None:
        return found
    return [of_sweep(each, planned, score=score, worst_case=worst_case) for each in found]


def _check_accuracies(folder: SweepFolder | None, rule: str) -> None:
    """Refuse a rule that bounds accuracies if a score of the sweep is not an accuracy."""
    for score in () if folder is None else folder.spec().scores:
        if score.params.is_area:
            raise ValueError(
                f"rule must not be {rule} for a sweep whose score {score.name} is an area under a "
                "curve: its bounds are of accuracies. Measure them with figure: accuracy."
            )


def source_of(source: str | Path, storage: str = "raydp_runs") -> PointsSource:
    """Return the points of a file, or of a sweep by its folder, its name under storage or its spec.

    Raises:
        ValueError: there is no such sweep.
    """
    path = Path(source)
    if not _is_table(path):
        return PointsSource(folder=sweep_folder(source, storage))
    # A points.csv belongs to a sweep only if it lies in the sweep's folder.
    of_a_sweep = path.name == POINTS_FILE and SweepFolder.is_at(path.parent)
    return PointsSource(folder=SweepFolder.open(path.parent) if of_a_sweep else None, file=path)


def _is_table(path: Path) -> bool:
    """Return whether a source is a points file. A spec is not one: it stands for its sweep."""
    return path.suffix in {".csv", ".parquet"} or (path.is_file() and not is_spec(path))


def sweep_folder(source: str | Path, storage: str = "raydp_runs") -> SweepFolder:
    """Return a sweep's folder by its path, by its name under storage, or by its spec.

    The storage of a spec's sweep is the one that the spec names.

    Raises:
        ValueError: there is no such sweep.
    """
    path = Path(source)
    if is_spec(path):
        return folder_of_spec(path)
    return SweepFolder.open(path if path.exists() else Path(storage) / path)
