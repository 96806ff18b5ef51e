"""Sweeps from Python: the same as the commands, returning objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from analysis import Selection, load_points, split_by, with_score, with_worst_case
from analysis import select as select_from
from analysis.selection.reference import REFERENCE_RULES
from raydp.io.output import stderr
from raydp.spec.document import DEMO, SweepSpec, load_spec
from raydp.sweep.planning.sources import folder_of_spec, is_spec, named
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.measurements import is_logarithmic
from raydp.sweep.store.points import POINTS_FILE, counts, points_table, secrets_beside, values_by_secret, write_tables

if TYPE_CHECKING:
    from raydp.sweep.driver import SweepResult
    from raydp.sweep.engine.tune.callbacks import Callback
    from raydp.sweep.planning.plan import SweepPlan
    from raydp.tasks.base import Task


class Sweep:
    """One sweep.

    Args:
        spec: a YAML file, its content as a mapping, or a checked spec; without one the embedded default.

    Raises:
        ValueError: the spec has mistakes; names each and what to change.
    """

    def __init__(self, spec: str | Path | Mapping[str, Any] | SweepSpec | None = None) -> None:
        self.spec = spec if isinstance(spec, SweepSpec) else load_spec(spec if spec is not None else DEMO)
        self._path = Path(self.spec.storage) / self.spec.name

    @classmethod
    def open(cls, sweep: str | Path | Mapping[str, Any] | SweepSpec, *, storage: str = "raydp_runs") -> Sweep:
        """Open a sweep that was started before, whether it is running, was interrupted or has ended.

        Args:
            sweep: its name under storage, its folder, or its spec (a YAML file, a mapping or a checked spec).
            storage: the folder that sweeps live in, for a name.

        Raises:
            ValueError: there is no such sweep; says which there are.
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

    def run(self, *, resume: bool = False, callbacks: Sequence[Callback] = ()) -> SweepResult:
        """Run the sweep to its end, or go on where it stopped.

        Args:
            resume: go on with a sweep that was started before.
            callbacks: callbacks of Ray Tune, such as the loggers for Weights & Biases, TensorBoard or Comet. Every run
                is a Tune trial. A callback sees its config (b, T, η, σ, seed), its step metrics while it trains, and
                its utility and scores at its end. These are computed on private data, and ε does not cover them.

        Raises:
            ValueError: spec, model, data or folder is wrong. Nothing was trained then.
        """
        with stderr.status("Load the libraries"):
            from raydp.sweep.driver import run_sweep

        return run_sweep(self.spec, resume=resume, console=stderr, callbacks=callbacks)

    @property
    def begun(self) -> bool:
        """Whether it has a folder to go on with."""
        return SweepFolder.exists(self.spec)

    def plan(self) -> pd.DataFrame:
        """Every configuration with n, q, σ, ε, δ, C, U and cost; trains nothing."""
        return plan(self.spec)

    @property
    def folder(self) -> SweepFolder:
        """What the sweep keeps on disk."""
        return SweepFolder.open(self._path)

    def points(self) -> pd.DataFrame:
        """The points table as far as the sweep has come."""
        return points_table(self.folder)

    def select(self, **options: Any) -> Selection:
        """Select a configuration from the runs that have finished; options as in `raydp.select`."""
        return select(self._path, **options)

    def status(self) -> dict[str, Any]:
        """Runs by status and the failures with their reasons."""
        return counts(self.folder)


def plan(spec: str | Path | Mapping[str, Any] | SweepSpec) -> pd.DataFrame:
    """Check and calibrate a sweep without training anything.

    Returns:
        One row per configuration. `.attrs` holds warnings, what a named space left out, the task's facts, and remarks
        on what ε and σ are of.
    """
    from raydp.sweep.planning.start import check_plan

    checked = spec if isinstance(spec, SweepSpec) else load_spec(spec)
    not_now = check_plan(checked)
    table = make_table(planned(checked)[0])
    table.attrs["warnings"] += not_now
    return table


def planned(spec: SweepSpec) -> tuple[SweepPlan, Task]:
    """A sweep's plan and its task."""
    from raydp.sweep.planning.inputs import build_task
    from raydp.sweep.planning.plan import make_plan

    with stderr.status("reading data and checking the model"):
        task, weight_hash = build_task(spec)
    with stderr.status("calibrating the noise") as status:
        found = make_plan(
            spec,
            task.facts(),
            weight_hash,
            progress=lambda done, total: status.update(f"calibrating the noise {done}/{total}"),
        )
    return found, task


def make_table(planned: SweepPlan) -> pd.DataFrame:
    """See `plan`."""
    table = pd.DataFrame(planned.rows())
    table.attrs["warnings"] = list(planned.warnings)
    table.attrs["rejected"] = [f"{r.configuration}: {r.reason}" for r in planned.rejected]
    table.attrs["facts"] = planned.facts
    table.attrs["selection"] = planned.selection
    table.attrs["remarks"] = planned.remarks()
    return table


def plan_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The objects of `raydp plan --json`: a plan's rows, each with what the text says of the whole sweep.

    Returns:
        One object a configuration: the columns, "data" (examples, units and the task's notes: counts and caveats),
        "warnings" and "remarks" (what ε and σ are of), equal in all objects.
    """
    facts = table.attrs["facts"]
    counted = {name: getattr(facts, name) for name in ("num_examples", "num_units", "privacy_unit")}
    whole = {"data": {**counted, **facts.notes}, **{name: table.attrs[name] for name in ("warnings", "remarks")}}
    return [{**{str(name): value for name, value in row.items()}, **whole} for row in table.to_dict("records")]


def select(
    points: str | Path | pd.DataFrame,
    *,
    storage: str = "raydp_runs",
    score: str | None = None,
    worst_case: bool = False,
    **options: Any,
) -> Selection:
    """Select a configuration from a points table or a sweep; options as in `analysis.select`.

    Args:
        score: another of the table's scores than the one that the sweep selects by, measured in training or later.
        worst_case: take a model's largest value over its secrets (needs a sweep, or secrets.parquet beside the file).

    A sweep's own constraint (select.min_utility_gain) holds where no other is given. Of a private selection it is the
    model that was released, and there is no other choice.
    """
    if isinstance(points, pd.DataFrame):
        return select_from(points if score is None else with_score(points, score), **options)
    folder = private_selection_of(points, storage)
    if folder is not None:
        from raydp.sweep.private_selection.release import select_released

        return select_released(folder, score=score, worst_case=worst_case or None, **options)
    if options.get("rule") in REFERENCE_RULES:
        _check_accuracies(folder_of(points, storage), str(options["rule"]))
    table, defaults = points_of(points, storage, score=score, worst_case=worst_case)
    values = None if worst_case else secrets_of(points, storage, score)
    return select_from(table, by_secret=values, **with_given(defaults, options))


def _check_accuracies(folder: SweepFolder | None, rule: str) -> None:
    """Refuse a rule whose bounds are of accuracies where the sweep says that its scores are others."""
    for score in () if folder is None else folder.spec().scores:
        if score.params.is_area:
            raise ValueError(
                f"rule must not be {rule} for a sweep whose score {score.name} is an area under a curve: its bounds "
                "are of accuracies. Measure them with figure: accuracy."
            )


def with_given(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep's selection options with those in their place that a user gave. A share of the gain takes the place of a
    threshold too, which would override it."""
    given = {name: value for name, value in given.items() if value is not None}
    kept = {
        name: value for name, value in defaults.items() if (name, "min_utility_gain" in given) != ("max_loss", True)
    }
    return {**kept, **given}


def private_selection_of(source: str | Path, storage: str = "raydp_runs") -> SweepFolder | None:
    """The folder of a private selection, where the source is one or its points.csv; None for other sources."""
    folder = folder_of(source, storage)
    return folder if folder is not None and folder.is_private_selection() else None


def folder_of(source: str | Path, storage: str = "raydp_runs") -> SweepFolder | None:
    """The sweep's folder that a source names (see `sweep_folder`), or that its points.csv is in; None for another
    file."""
    path = Path(source)
    if _is_table(path):
        of_a_sweep = path.name == POINTS_FILE and (path.parent / "spec.yaml").is_file()
        return SweepFolder.open(path.parent) if of_a_sweep else None
    return sweep_folder(source, storage)


def points_of(
    source: str | Path,
    storage: str = "raydp_runs",
    *,
    score: str | None = None,
    worst_case: bool = False,
    by: str | None = None,
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The points of a file, a sweep's folder, or a sweep by its name under storage.

    Args:
        score, worst_case: what `score` is to be, as in `select`.
        by: see `load_points`.

    Returns:
        The table, and the sweep's own selection options, also for the points.csv in its folder ({} for another file).
    """
    folder, file = _table_of(source, storage)
    table = load_points(file, by=by)
    if worst_case:
        name = score or (folder.select().score if folder is not None else None)
        if name is None:
            raise ValueError("--score must be given with --worst-case and a file, got none. Name one of its scores.")
        table = with_worst_case(table, secrets_beside(file), name)
    elif score is not None:
        table = with_score(table, score)
    return table, {} if folder is None else _options(folder, score)


def with_secrets(source: str | Path, storage: str = "raydp_runs") -> tuple[pd.DataFrame, pd.DataFrame, str | None]:
    """The points of a file or sweep, the values by secret beside them, and the score that the sweep selects by."""
    folder, file = _table_of(source, storage)
    return (
        load_points(file),
        secrets_beside(file),
        None if folder is None else folder.select().score,
    )


def tables_of(
    sources: list[str], storage: str = "raydp_runs", *, score: str | None, worst_case: bool, by: str | None = None
) -> dict[str, pd.DataFrame]:
    """The points of several sources by their names, or of one by the values of a column.

    Raises:
        ValueError: a source is named twice, or by goes with several.
    """
    if by is not None and len(sources) > 1:
        raise ValueError(f"--by must go with one table, got {len(sources)}. Leave it out: the tables are the groups.")
    sources = list(map(named, sources))
    tables = {name: points_of(name, storage, score=score, worst_case=worst_case, by=by)[0] for name in sources}
    if len(tables) < len(sources):
        raise ValueError(f"POINTS must be named once each, got {', '.join(sources)}. Remove the repeated one.")
    return tables if by is None else split_by(next(iter(tables.values())), by)


def classify(sources: list[str], storage: str) -> bool:
    """Whether one of the sources is a sweep of a task of classification: its utility is no likelihood of text."""
    specs = [folder.spec() for source in sources if (folder := folder_of(source, storage)) is not None]
    return any(spec.task.params.classifies for spec in specs)


def secrets_of(source: str | Path, storage: str, score: str | None) -> tuple[pd.DataFrame, str] | None:
    """The values by secret of the score that a source is selected by, as far as it has them; `points_of` has written
    those of a sweep."""
    folder = folder_of(source, storage)
    if folder is None:
        return values_by_secret(Path(source), score)
    return values_by_secret(folder.path / POINTS_FILE, score or folder.select().score)


def _table_of(source: str | Path, storage: str) -> tuple[SweepFolder | None, Path]:
    """A source's points file, written anew for a sweep, and the sweep that it is of."""
    folder, path = folder_of(source, storage), Path(source)
    return folder, path if _is_table(path) or folder is None else write_tables(folder)


def _is_table(path: Path) -> bool:
    """Whether a source is a points file; a spec stands for its sweep."""
    return path.suffix in {".csv", ".parquet"} or (path.is_file() and not is_spec(path))


def _options(folder: SweepFolder, score: str | None) -> dict[str, Any]:
    """How a sweep selects, by another score than its own if one is given."""
    chosen = folder.select()
    logarithmic = is_logarithmic(folder, score or chosen.score)
    return {"rule": chosen.rule, "logarithmic": logarithmic, **chosen.constraints()}


def sweep_folder(source: str | Path, storage: str = "raydp_runs") -> SweepFolder:
    """A sweep's folder by its path, by its name under storage, or by its spec: the sweep is then in the spec's storage.

    Raises:
        ValueError: there is no such sweep.
    """
    path = Path(source)
    if is_spec(path):
        return folder_of_spec(path)
    return SweepFolder.open(path if path.exists() else Path(storage) / path)
