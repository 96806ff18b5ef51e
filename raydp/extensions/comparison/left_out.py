"""Comparison of two sweeps of equal configurations, with and without some training examples."""

from __future__ import annotations

import pandas as pd

from raydp.analysis import score_names
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.extensions.comparison.counterfactuals import counterfactual
from raydp.plugins.registries import unknown_name
from raydp.sweep.api import sweep_folder
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import points_table, secrets_table


def compare(
    with_examples: str,
    without_examples: str,
    *,
    score: str | None = None,
    storage: str = "raydp_runs",
) -> dict[str, object]:
    """Compare a score between two sweeps (see `raydp.analysis.counterfactual`).

    Args:
        with_examples: a sweep's folder or name.
        without_examples: a sweep whose task is `without` of the first sweep's task.
        score: the score to compare; by default the score that the first sweep selects by.
        storage: the folder that sweeps live in, for a name.

    Returns:
        The result of `raydp.analysis.counterfactual`, with "score" and "num_examples": {"with",
        "without"}.

    Raises:
        ValueError: the sweeps do not fit each other, or a sweep has not measured the score.
    """
    folders = [sweep_folder(source, storage) for source in (with_examples, without_examples)]
    specs = [folder.spec() for folder in folders]
    # The tasks must differ in the left-out examples alone, so that the difference is their effect.
    control = specs[1].task
    if control.name != "without" or control.params.of.as_dict() != specs[0].task.as_dict():
        raise ValueError(
            "SWEEP_WITHOUT must have the task without, of the task of SWEEP_WITH, got "
            f"{control.name!r}. Its spec is that of SWEEP_WITH with task {{name: without, of: "
            "{...}, secrets: ...}."
        )
    chosen = score or specs[0].select.score
    if chosen is None:
        raise ValueError(
            "--score must be given for sweeps without scores, got none. Measure one by `raydp "
            "score`."
        )
    facts = [folder.plan().facts for folder in folders]
    # Counterfactual memorisation (Zhang et al. 2023, Eq. 1), beside secrets that both sweeps saw.
    answer = counterfactual(
        *(_values(folder, chosen) for folder in folders),
        left_out=facts[1].notes["left_out_secrets"],
    )
    counts = {
        side: fact.num_examples for side, fact in zip(("with", "without"), facts, strict=True)
    }
    return {"score": chosen, "num_examples": counts, **answer}


def _values(folder: SweepFolder, score: str) -> pd.DataFrame:
    """Return a score of every finished run and secret, with the run's configuration and seed."""
    points, secrets = points_table(folder), secrets_table(folder)
    known = sorted(set(secrets["score"]) & set(score_names(points)))
    if score not in known:
        raise ValueError(unknown_name(f"score of {folder.path.name}", score, known))
    finished = points[points["status"] == "finished"]
    return with_settings(finished)[["run_id", *KEY, "seed"]].merge(
        secrets.loc[secrets["score"] == score, ["run_id", "secret_id", "value"]],
        on="run_id",
        validate="one_to_many",
    )
