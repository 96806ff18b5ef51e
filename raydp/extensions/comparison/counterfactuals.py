"""The effect of training on some examples on their secrets' scores, from two sweeps."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TypedDict

import numpy as np
import pandas as pd

from raydp.analysis.statistics.results import Reason, because
from raydp.analysis.tables.columns import KEY, with_settings
from raydp.analysis.tables.points import configurations
from raydp.search_spaces.configuration import HYPERPARAMETERS, Hyperparameters

_Sides = TypedDict("_Sides", {"with": float, "without": float})


class CounterfactualRow(Hyperparameters, _Sides, Reason):
    """The scores of one configuration and secret."""

    secret_id: str
    left_out: bool
    difference: float
    std_error: float | None


class Summary(Reason):
    """The mean difference over configurations and secrets."""

    secrets: int
    difference: float | None
    std_error: float | None


class Counterfactual(TypedDict):
    """The scores of two sweeps, with some examples and without them."""

    configurations: int
    unmatched: int
    left_out: Summary
    others: Summary
    rows: list[CounterfactualRow]


def counterfactual(
    with_examples: pd.DataFrame, without_examples: pd.DataFrame, *, left_out: Collection[str]
) -> Counterfactual:
    """Return the score with examples minus the score without, by configuration and secret.

    Args:
        with_examples: columns batch_size, num_steps, learning_rate, settings (if configurations set
            further fields), seed, secret_id, value; one score of finished runs.
        without_examples: the same columns, for runs whose training data lack the examples with the
            secrets `left_out`.
        left_out: names of the secrets that were left out.

    Returns:
        "rows": per configuration and secret "with", "without" (means over seeds), their
        "difference", its "std_error" over seeds (None with fewer than two of either) and whether
        the secret was "left_out". The rows are sorted by (T, b, η) and secret. "left_out" and
        "others": "secrets", the mean "difference" over configurations and secrets and its
        "std_error" over secrets (ddof = 1, None with fewer than two). The other secrets were in
        both training sets. They show the effect of noise and of the different data set size alone.
        "configurations": number of configurations in both sweeps; "unmatched": number in only one
        sweep.

    Raises:
        ValueError: no configuration or no secret in common, a missing hyperparameter, or a left-out
            secret that neither sweep scored.

    Source: Zhang et al. 2023 (counterfactual memorisation, Eq. 1); Feldman and Zhang 2020
    (memorisation score).
    """
    sides = [_by_configuration(table) for table in (with_examples, without_examples)]
    settings = [{key[:-1] for key in side.index} for side in sides]
    merged = sides[0].add_suffix("_with").join(sides[1].add_suffix("_without"), how="inner")
    if not len(merged):
        raise ValueError(
            "SWEEP_WITHOUT must share a configuration and a secret with SWEEP_WITH, got none. Run "
            "both with one space and one score."
        )
    rows = [_row(figures, left_out) for _, figures in merged.reset_index().iterrows()]
    # A secret that was never scored must not pass for one without an effect.
    if absent := set(left_out) - {row["secret_id"] for row in rows}:
        raise ValueError(
            f"SWEEP_WITH must score what SWEEP_WITHOUT leaves out, got no {min(absent)}. Use one "
            "task for both."
        )
    return {
        "configurations": len(settings[0] & settings[1]),
        "unmatched": len(settings[0] ^ settings[1]),
        "left_out": _summary([row for row in rows if row["left_out"]]),
        "others": _summary([row for row in rows if not row["left_out"]]),
        "rows": rows,
    }


def _by_configuration(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean, variance over seeds and number of seeds, by (T, b, η, secret)."""
    if table[HYPERPARAMETERS].isna().any(axis=None):
        raise ValueError(
            "SWEEP must have batch_size, num_steps and learning_rate in every run, got a run "
            "without. Compare methods that have them."
        )
    values = with_settings(table).groupby([*KEY, "secret_id"], sort=True)["value"]
    return pd.DataFrame(
        {"mean": values.mean(), "variance": values.var(ddof=1), "seeds": values.count()}
    )


def _row(figures: pd.Series, left_out: Collection[str]) -> CounterfactualRow:
    """Return the record of one configuration and secret."""
    secret_id = str(figures["secret_id"])
    # The variance of a difference of two independent means; NaN with one seed.
    variance = sum(
        float(figures[f"variance_{side}"]) / int(figures[f"seeds_{side}"])
        for side in ("with", "without")
    )
    return {
        **configurations(figures.to_frame().T)[0].to_json(),
        "secret_id": secret_id,
        "left_out": secret_id in left_out,
        "with": float(figures["mean_with"]),
        "without": float(figures["mean_without"]),
        "difference": float(figures["mean_with"] - figures["mean_without"]),
        "std_error": None if math.isnan(variance) else math.sqrt(variance),
        **because("std_error needs two seeds of both" if math.isnan(variance) else None),
    }


def _summary(rows: list[CounterfactualRow]) -> Summary:
    """Return the mean difference, over configurations and then over secrets."""
    # The secrets are the sample, so average over configurations within each secret first.
    by_secret: dict[str, list[float]] = {}
    for row in rows:
        by_secret.setdefault(row["secret_id"], []).append(row["difference"])
    means = [float(np.mean(differences)) for differences in by_secret.values()]
    difference = float(np.mean(means)) if means else None
    summary: Summary = {"secrets": len(means), "difference": difference, "std_error": None}
    if len(means) < 2:
        reason = "std_error needs two secrets" if means else "there are no such secrets"
        return {**summary, "reason": reason}
    return {**summary, "std_error": float(np.std(means, ddof=1)) / math.sqrt(len(means))}
