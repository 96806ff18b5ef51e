"""The points table of a sweep, made from its folder."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from raydp.analysis.statistics.results import given
from raydp.analysis.tables.per_secret import controls_of
from raydp.analysis.tables.statements import stated_columns
from raydp.privacy.accounting.infinity import json_number
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.sweep.store.folder import BASE_RUN, SweepFolder
from raydp.sweep.store.measurements import (
    Measurements,
    measured_later,
    measurements_in,
    scores_of,
    variant_figures,
)
from raydp.sweep.store.results import RunResult
from raydp.sweep.store.state import Plan
from raydp.sweep.store.summary import RunCounts, RunFailure
from raydp.system.damaged_files import naming
from raydp.system.files import write_atomically
from raydp.training.trial_plan import TrialPlan

POINTS_FILE = "points.csv"
SECRETS_FILE = "secrets.parquet"
SECRETS_COLUMNS = ("run_id", "score", "secret_id", "value", "num_samples", "count")


def points_table(folder: SweepFolder) -> pd.DataFrame:
    """Return one row per run of the plan, in the order of the plan.

    A run without a result is `skipped` if a search or adaptive seeds that have ended left it out,
    else `pending`.
    """
    plan = folder.plan()
    if not plan.trials:
        raise ValueError(
            f"SWEEP must hold a run, got {folder.path.name!r}, whose number of runs was drawn as "
            "0. A new sweep draws again, and its release has an ε of its own."
        )
    base = folder.result(BASE_RUN)
    later = measured_later(folder)
    skipped = folder.skipped_runs()
    score, summary = folder.select().score, folder.summary()
    aliases = {} if summary is None else summary.aliases
    rows = [
        _row(folder, trial, plan, score, base, later, skipped, aliases) for trial in plan.trials
    ]
    # Without further fields, the table has no column for them.
    if not any(trial.settings for trial in plan.trials):
        rows = [{name: value for name, value in row.items() if name != "settings"} for row in rows]
    method = folder.method()
    parameters = [_parameters(method, plan.facts.content_hash, trial) for trial in plan.trials]
    return pd.concat([pd.DataFrame(rows), pd.DataFrame(parameters)], axis=1)


def _parameters(
    method: Mapping[str, object], task_hash: str, trial: TrialPlan
) -> dict[str, object]:
    """Return the columns of a run's method, its data and its further fields."""
    own = dict(method)
    # The fields that a configuration sets override the spec's.
    for path, value in trial.settings.items():
        section, *rest = path.split(".")
        own = with_entry(own, rest, value) if section == "method" else own
    # The clipping norm has a column that methods share. Other parameters have a prefix.
    return {
        "method": own.pop("name"),
        "task_hash": task_hash,
        "max_grad_norm": own.pop("max_grad_norm", None),
        **{f"param.{name}": value for name, value in own.items()},
        **{
            f"param.{path}": value
            for path, value in trial.settings.items()
            if path.startswith("model.")
        },
    }


def with_entry(
    written: Mapping[str, object], path: Sequence[str], value: object
) -> dict[str, object]:
    """Return a mapping with another value at a path of keys."""
    name, *rest = path
    if not rest:
        return {**written, name: value}
    inner = written.get(name)
    return {**written, name: with_entry(inner if isinstance(inner, Mapping) else {}, rest, value)}


def secrets_table(folder: SweepFolder) -> pd.DataFrame:
    """Return the values by secret: one row per run, score and secret.

    The columns are run_id, score, secret_id, value, num_samples and count. The count is the number
    of training examples that contain the secret; it is null if the folder has none. Counts are as
    private as the data, so the table stays in the folder.

    A score that subtracts what controls have, has further rows under the name of `controls_of`, one
    for each control.
    """
    columns: dict[str, list[object]] = {name: [] for name in SECRETS_COLUMNS}
    counts, later = folder.secret_counts() or {}, measured_later(folder)
    # The untrained model has values too: what it says of a secret was not learnt here.
    for run_id in [BASE_RUN, *(trial.run_id for trial in folder.plan().trials)]:
        for score, measured in scores_of(
            folder.result(run_id, history=False), run_id, later
        ).items():
            for name, values in {
                score: measured.per_secret,
                controls_of(score): measured.per_control,
            }.items():
                columns["run_id"] += [run_id] * len(values)
                columns["score"] += [name] * len(values)
                columns["secret_id"] += values
                columns["value"] += values.values()
                columns["num_samples"] += [measured.num_samples] * len(values)
                columns["count"] += map(counts.get, values)
    return pd.DataFrame(columns).astype({"count": "Int64"})


def write_tables(folder: SweepFolder) -> Path:
    """Write points.csv and secrets.parquet into the sweep's folder, readable by the owner alone."""
    points, secrets = table_files(folder)
    write_atomically(folder.path / POINTS_FILE, points.encode(), private=True)
    write_atomically(folder.path / SECRETS_FILE, secrets, private=True)
    return folder.path / POINTS_FILE


def table_files(folder: SweepFolder) -> tuple[str, bytes]:
    """Return the contents of points.csv and secrets.parquet, both of the same runs."""
    secrets = io.BytesIO()
    secrets_table(folder).to_parquet(secrets, index=False)
    return points_table(folder).to_csv(index=False), secrets.getvalue()


def secrets_beside(points: Path) -> pd.DataFrame:
    """Read the values by secret from the file beside a points table.

    Raises:
        ValueError: there is no such file, or it is not a Parquet file.
    """
    path = points.parent / SECRETS_FILE
    if not path.is_file():
        raise ValueError(
            f"POINTS must have {SECRETS_FILE} beside it for figures by secret, got {str(points)!r} "
            "without. Name a sweep instead."
        )
    remedy = "Name a sweep, which writes the file anew."
    with (
        path.open("rb") as stream,
        naming(path, "the file beside POINTS", "a whole Parquet file", remedy),
    ):
        return pd.read_parquet(stream)


def counts(folder: SweepFolder) -> RunCounts:
    """Count the runs of a sweep by status."""
    trials, search = folder.plan().trials, folder.search_end()
    seeds, skipped = folder.seeds_end(), folder.skipped_runs()
    # Keep status and reason of each run: all results together would fill the memory.
    statuses, reasons = (list[str](), list[str | None]())
    for trial in trials:
        result = folder.result(trial.run_id, history=False)
        statuses.append(_status(trial, result, skipped))
        reasons.append(None if result is None else result.reason)
    return RunCounts(
        runs=len(trials),
        finished=statuses.count("finished"),
        failed=statuses.count("failed"),
        stopped=statuses.count("stopped"),
        pending=statuses.count("pending"),
        failures=tuple(
            RunFailure(
                configuration=trial.configuration,
                seed=trial.seed,
                run_id=trial.run_id,
                reason=reason,
            )
            for trial, status, reason in zip(trials, statuses, reasons, strict=True)
            if status == "failed"
        ),
        # Runs can be skipped only by a search or by adaptive seeds that have ended.
        skipped=None if search is None and seeds is None else statuses.count("skipped"),
        search=search,
        seeds=seeds,
        # Some numbers may be misread or are private, so a note goes with them.
        note=folder.disclosure().note or _open_note(folder),
        optional=_optional(folder, trials, statuses),
    )


def _optional(folder: SweepFolder, trials: Sequence[TrialPlan], statuses: Sequence[str]) -> int:
    """Count the pending runs of adaptive seeds that the decision may not need."""
    first = folder.first_seeds()
    if first is None:
        return 0
    return sum(
        s == "pending" and trial.seed not in first
        for trial, s in zip(trials, statuses, strict=True)
    )


def _open_note(folder: SweepFolder) -> str | None:
    """Return which scores are measured again, if this is not complete."""
    labels = [m.label for m in measurements_in(folder) if m.is_open()]
    if not labels:
        return None
    return f"trained models are measured again with {', '.join(labels)}; the new values count when all have them"


def _status(trial: TrialPlan, result: RunResult | None, skipped: set[str]) -> str:
    if result is not None:
        return result.status
    return "skipped" if trial.run_id in skipped else "pending"


def _executed(result: RunResult | None) -> dict[str, object]:
    """Return the columns on the steps that a stopped run did."""
    executed = None if result is None else result.executed
    return (
        {} if executed is None else {f"executed_{k}": executed[k] for k in ("num_steps", "epsilon")}
    )


def _stated(result: RunResult | None) -> dict[str, object]:
    """Return the further columns of the table that an imported model came from."""
    stated = None if result is None else result.details.get("stated")
    return (
        {f"stated.{name}": value for name, value in stated.items()}
        if isinstance(stated, dict)
        else {}
    )


def _row(
    folder: SweepFolder,
    trial: TrialPlan,
    plan: Plan,
    score: str | None,
    base: RunResult | None,
    later: list[Measurements],
    skipped: set[str],
    aliases: Mapping[str, str],
) -> dict[str, object]:
    result = folder.result(trial.run_id, history=False)
    status = _status(trial, result, skipped)
    privacy = plan.privacy[trial.run_id]
    # The gain needs both losses: a run may be pending, and the base model's measurement may fail.
    utility, base_utility = (None if r is None else r.utility_loss for r in (result, base))
    scores = scores_of(result, trial.run_id, later)
    return {
        **{k: getattr(trial, k) for k in HYPERPARAMETERS},
        "settings": trial.settings.text,
        "seed": trial.seed,
        "utility_loss": utility,
        "score": scores[score].value if score in scores else None,
        "run_id": trial.run_id,
        "status": status,
        # The accounted ε. A stated ε has a column of its own and is never mixed with it.
        "epsilon": json_number(privacy.accounted.epsilon),
        **given(**stated_columns(privacy.stated)),
        "delta": privacy.accounted.delta,
        **_executed(result),
        "noise_multiplier": trial.noise_multiplier,
        "base_utility_loss": base_utility,
        "utility_gain": None if utility is None or base_utility is None else base_utility - utility,
        **{f"score.{name}": measured.value for name, measured in scores.items()},
        **{f"score.{name}.std_error": measured.std_error for name, measured in scores.items()},
        **variant_figures(result),
        **_stated(result),
        "train_seconds": None if result is None else result.train_seconds,
        "score_seconds": None if result is None else result.score_seconds,
        # Where the model is: its URI in the registry, and the aliases that point at it.
        "model_uri": (uri := folder.model_uri(trial.run_id)),
        "alias": ", ".join(alias for alias, model in aliases.items() if model == uri) or None,
    }
