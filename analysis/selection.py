"""Selecting one configuration from a points table, with the reasons on record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.points import HYPERPARAMETERS, configuration_means, configurations, other_rows, require_hyperparameters
from analysis.rules import Layout, rule_steps
from analysis.utility_filter import loss_threshold, pool_within
from search_spaces.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class SelectionStep:
    """What one step of a rule did.

    Attributes:
        name: of the step.
        rule: in words.
        survivors: configurations that remain, sorted by (T, b, η).
        dropped: configurations that this step removed.
    """

    name: str
    rule: str
    survivors: tuple[Configuration, ...]
    dropped: tuple[Configuration, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "rule": self.rule,
            "survivors": [_as_dict(c) for c in self.survivors],
            "dropped": [_as_dict(c) for c in self.dropped],
        }


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected configuration and why.

    Attributes:
        configuration: what was selected.
        utility_loss: its mean over seeds, lower is better.
        score: its mean over seeds, higher is more leakage.
        rule: the name of the rule.
        steps: what each step kept, the utility threshold first if there is one.
        model_uri: models:/name/version of its first listed seed that finished, None if the table has none.
        max_loss: the utility threshold that was applied, None without one.
        warnings: what the user should know before relying on it.
    """

    configuration: Configuration
    utility_loss: float
    score: float
    rule: str
    steps: tuple[SelectionStep, ...]
    model_uri: str | None
    max_loss: float | None = None
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The document that `raydp select --json` prints."""
        return {
            **_as_dict(self.configuration),
            "utility_loss": self.utility_loss,
            "score": self.score,
            "rule": self.rule,
            "max_loss": self.max_loss,
            "steps": [step.to_dict() for step in self.steps],
            "model_uri": self.model_uri,
            "warnings": list(self.warnings),
        }


def select(
    points: pd.DataFrame,
    *,
    rule: str = "procedure",
    max_loss: float | None = None,
    min_utility_gain: float | None = None,
    base_utility_loss: float | None = None,
) -> Selection:
    """Select one configuration by its means over seeds.

    Args:
        points: a points table (see `load_points`); the order of its rows never matters for what is selected.
        rule: "procedure" (Algorithm 1: needs no score of its own), "best-utility", "worst-utility" or "oracle".
        max_loss: consider only mean utility losses up to it; overrides min_utility_gain.
        min_utility_gain: consider only gains of at least this share of the best gain over the pre-trained model.
        base_utility_loss: the pre-trained model's loss; without it, the column of that name.

    Returns:
        The selection. Where a rule leaves several, the first in the order (T, b, η).

    Raises:
        ValueError: an unknown rule, a table that `configuration_means` refuses, a constraint that `loss_threshold`
            refuses, or no configuration within the threshold (says what the lowest loss is).

    Source: Hu et al. 2025, Algorithm 1 and §4.3.
    """
    steps = rule_steps(rule)
    constraints = {"max_loss": max_loss, "min_utility_gain": min_utility_gain}
    points = require_hyperparameters(points)
    means = configuration_means(points)
    threshold = loss_threshold(
        means, max_loss=max_loss, min_utility_gain=min_utility_gain, base_utility_loss=base_utility_loss
    )
    listed = np.array(configurations(means), dtype=object)
    pool = np.ones(len(means), dtype=np.bool_)
    record: list[SelectionStep] = []
    if threshold is not None:
        kept = pool_within(means, threshold)
        text = f"keep a mean utility loss of at most {threshold.max():.6g}"
        record.append(_step("utility threshold", text, listed, pool, kept))
        pool = kept
    passed = pool
    layout = Layout.of(means)
    for step in steps:
        kept = step.keep(layout, pool)
        record.append(_step(step.name, step.text, listed, pool, kept))
        pool = kept
    selected = int(pool.argmax())
    constraint = next((f"{k} {v:g}" for k, v in constraints.items() if v is not None), None)
    warnings = [
        *_left_out(points),
        *_corner(means, rule, passed, constraint),
        *_unsettled(means, passed, selected),
        *_beaten(means, passed, selected),
    ]
    return _selection(means.iloc[selected], rule, record, threshold, tuple(warnings))


def _selection(
    row: pd.Series,
    rule: str,
    record: list[SelectionStep],
    threshold: NDArray[np.float64] | None,
    warnings: tuple[str, ...],
) -> Selection:
    """A row of means and its record, put together."""
    return Selection(
        configuration=configurations(row.to_frame().T)[0],
        utility_loss=float(row["utility_loss"]),
        score=float(row["score"]),
        rule=rule,
        steps=tuple(record),
        model_uri=row["model_uri"],
        max_loss=None if threshold is None else float(threshold.max()),
        warnings=warnings,
    )


def _step(
    name: str, text: str, listed: NDArray[np.object_], before: NDArray[np.bool_], after: NDArray[np.bool_]
) -> SelectionStep:
    """The record of one narrowing."""
    return SelectionStep(name=name, rule=text, survivors=tuple(listed[after]), dropped=tuple(listed[before & ~after]))


def _left_out(points: pd.DataFrame) -> list[str]:
    """A warning if runs are missing."""
    others = other_rows(points)
    if not others:
        return []
    counts = ", ".join(f"{count} {status}" for status, count in sorted(others.items()))
    return [f"The table has rows that are not finished and were left out: {counts}."]


def _corner(means: pd.DataFrame, rule: str, passed: NDArray[np.bool_], constraint: str | None) -> list[str]:
    """A warning if the procedure cannot but end at the corner of a grid."""
    values = [means[name].nunique() for name in HYPERPARAMETERS]
    if rule != "procedure" or not passed.all() or not 1 < len(means) == int(np.prod(values)):
        return []
    always = "the procedure always selects the smallest b, T and η, whatever their utility"
    if constraint is None:
        return [f"On a full grid without a utility threshold, {always}. Set max_loss or min_utility_gain."]
    remedy = "Lower it" if constraint.startswith("max_loss") else "Raise it"
    return [f"{constraint} excluded nothing: on a full grid {always}. {remedy} to exclude something."]


def _unsettled(means: pd.DataFrame, passed: NDArray[np.bool_], selected: int) -> list[str]:
    """A warning if the selected and the best-utility configuration differ in score by less than the standard error of
    that difference over seeds, sqrt(s1²/n1 + s2²/n2)."""
    best = int(np.where(passed, means["utility_loss"].to_numpy(), np.inf).argmin())
    pair = means.iloc[[selected, best]]
    if best == selected or (pair["num_seeds"] < 2).any():
        return []
    difference = abs(float(pair["score"].iloc[0] - pair["score"].iloc[1]))
    error = float(np.sqrt((pair["score_std"] ** 2 / pair["num_seeds"]).sum()))
    if difference >= error:
        return []
    return [
        f"The seeds do not settle the choice: the score differs from the best-utility configuration's by "
        f"{difference:.2g}, less than the standard error of that difference, {error:.2g}. Add seeds."
    ]


def _beaten(means: pd.DataFrame, passed: NDArray[np.bool_], selected: int) -> list[str]:
    """A warning if another configuration has less loss and a lower score: what was measured speaks against the rule."""
    loss, score = means["utility_loss"].to_numpy(), means["score"].to_numpy()
    better = passed & (loss < loss[selected]) & (score < score[selected])
    if not better.any():
        return []
    one = configurations(means)[int(np.where(better, score, np.inf).argmin())]
    return [
        f"{int(better.sum())} of {int(passed.sum())} configurations have less loss and a lower score than the selected "
        f"one, such as (b={one.batch_size}, T={one.num_steps}, η={one.learning_rate:g}): the rule does not look at the "
        "scores, and they speak against it here. See `raydp analyze heuristics`, and add seeds."
    ]


def _as_dict(configuration: Configuration) -> dict[str, Any]:
    """A configuration for JSON."""
    return {name: getattr(configuration, name) for name in HYPERPARAMETERS}
