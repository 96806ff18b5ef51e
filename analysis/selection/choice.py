"""Selecting one configuration from a points table, with the reasons on record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.selection.constraints import Constraints
from analysis.selection.contenders import Contenders, contenders
from analysis.selection.reference import SETTINGS
from analysis.selection.rules import BEST_UTILITY, Layout, Rule, rule_names, rule_steps
from analysis.statistics.noise import means_by_secret
from analysis.tables.points import (
    HYPERPARAMETERS,
    configuration_means,
    configurations,
    other_rows,
    require_hyperparameters,
)
from search_spaces.configuration import Configuration
from search_spaces.names import unknown_name

_UNMINDFUL = {"best-utility", "worst-utility", *SETTINGS}
"""Rules that nobody takes for the sake of a low score: what the scores leave open is no warning there."""
_NAMED = 3


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
        contenders: which configurations may be the one with the lowest score, None where nobody asked.
        constraints: what was kept to, None where the selection was not made by a rule.
    """

    configuration: Configuration
    utility_loss: float
    score: float
    rule: str
    steps: tuple[SelectionStep, ...]
    model_uri: str | None
    max_loss: float | None = None
    warnings: tuple[str, ...] = ()
    contenders: Contenders | None = None
    constraints: Constraints | None = None

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
            **({} if self.contenders is None else {"uncertainty": self.contenders.to_dict()}),
        }


def select(
    points: pd.DataFrame,
    *,
    rule: str = "procedure",
    max_loss: float | None = None,
    min_utility_gain: float | None = None,
    base_utility_loss: float | None = None,
    max_score: float | None = None,
    at_most: Mapping[str, float] | None = None,
    by_secret: tuple[pd.DataFrame, str] | None = None,
) -> Selection:
    """Select one configuration by its means over seeds, and say how far the data support the choice.

    Args:
        points: a points table (see `load_points`); the order of its rows never matters for what is selected.
        rule: a name in `RULES`: "procedure" (Algorithm 1: needs no score of its own), "best-utility", ...; or in
            `SETTINGS`, of training and reference data: "public-reference", ...
        max_loss, min_utility_gain, base_utility_loss, max_score, at_most: see `Constraints`.
        by_secret: the sweep's secrets.parquet and the score's name, so that the uncertainty counts the choice of
            secrets in; without it, seeds alone.

    Returns:
        The selection. Where a rule leaves several, the first in the order (T, b, η).

    Raises:
        ValueError: an unknown rule, a table that `configuration_means` refuses, a constraint that cannot be kept to
            (says what the lowest figure is), or no configuration that keeps to all of them together.

    Source: Hu et al. 2025, Algorithm 1, §4.2 and §4.3.
    """
    steps = _steps(rule)
    points = require_hyperparameters(points)
    means = configuration_means(points)
    constraints = Constraints(
        max_loss=max_loss,
        min_utility_gain=min_utility_gain,
        base_utility_loss=base_utility_loss,
        max_score=max_score,
        at_most=at_most or {},
    )
    listed = np.array(configurations(means), dtype=object)
    pool = np.ones(len(means), dtype=np.bool_)
    record: list[SelectionStep] = []
    narrowings = constraints.narrowings(points, means, by_secret)
    narrowings += [SETTINGS[rule].narrowing(points)] if rule in SETTINGS else []
    for name, text, kept in narrowings:
        if not (pool & kept).any():
            raise ValueError(
                f"constraints must leave a configuration, got none that keeps to the {name} and those before it. "
                "Relax one of them."
            )
        record.append(_step(name, text, listed, pool, pool & kept))
        pool = pool & kept
    passed = pool
    layout = Layout.of(means)
    for step in steps:
        kept = step.keep(layout, pool)
        record.append(_step(step.name, step.text, listed, pool, kept))
        pool = kept
    selected = int(pool.argmax())
    compared = contenders(
        means, passed, selected, by_secret=None if by_secret is None else means_by_secret(points, *by_secret)
    )
    warnings = [
        *_without_guarantee(points, listed[selected]),
        *_left_out(points),
        *_corner(means, rule, passed, constraints),
        *([] if rule in _UNMINDFUL else _unsupported(compared, int(passed.sum()))),
        *_beaten(means, passed, selected),
    ]
    return Selection(
        configuration=listed[selected],
        utility_loss=float(means["utility_loss"].iloc[selected]),
        score=float(means["score"].iloc[selected]),
        rule=rule,
        steps=tuple(record),
        model_uri=means["model_uri"].iloc[selected],
        max_loss=None if (threshold := constraints.threshold(means)) is None else float(threshold.max()),
        warnings=tuple(warnings),
        contenders=compared,
        constraints=constraints,
    )


def _steps(rule: str) -> Rule:
    """What a rule does with what keeps to the constraints."""
    if rule not in SETTINGS and rule not in rule_names():
        raise ValueError(unknown_name("rule", rule, [*rule_names(), *SETTINGS]))
    return BEST_UTILITY if rule in SETTINGS else rule_steps(rule)


def _step(
    name: str, text: str, listed: NDArray[np.object_], before: NDArray[np.bool_], after: NDArray[np.bool_]
) -> SelectionStep:
    """The record of one narrowing."""
    return SelectionStep(name=name, rule=text, survivors=tuple(listed[after]), dropped=tuple(listed[before & ~after]))


def _without_guarantee(points: pd.DataFrame, selected: Configuration) -> list[str]:
    """A warning if the selected models have no ε."""
    if "epsilon" not in points:
        return []
    own = (points[list(HYPERPARAMETERS)] == pd.Series(_as_dict(selected))).all(axis=1)
    if not np.isinf(points.loc[own, "epsilon"].to_numpy(dtype=np.float64)).any():
        return []
    return ["The selected configuration has no privacy guarantee: its epsilon is infinite."]


def _left_out(points: pd.DataFrame) -> list[str]:
    """A warning if runs are missing."""
    others = other_rows(points)
    if not others:
        return []
    counts = ", ".join(f"{count} {status}" for status, count in sorted(others.items()))
    return [f"The table has rows that are not finished and were left out: {counts}."]


def _corner(means: pd.DataFrame, rule: str, passed: NDArray[np.bool_], constraints: Constraints) -> list[str]:
    """A warning if the procedure cannot but end at the corner of a grid."""
    values = [means[name].nunique() for name in HYPERPARAMETERS]
    if rule != "procedure" or not passed.all() or not 1 < len(means) == int(np.prod(values)):
        return []
    always = "the procedure always selects the smallest b, T and η, whatever their utility"
    if constraints.max_loss is not None:
        given, remedy = f"max_loss {constraints.max_loss:g}", "Lower it"
    elif constraints.min_utility_gain is not None:
        given, remedy = f"min_utility_gain {constraints.min_utility_gain:g}", "Raise it"
    else:
        return [f"On a full grid without a utility threshold, {always}. Set max_loss or min_utility_gain."]
    return [f"{given} excluded nothing: on a full grid {always}. {remedy} to exclude something."]


def _unsupported(compared: Contenders, members: int) -> list[str]:
    """A warning if the measured scores leave open, or speak against, that the selected one has the lowest."""
    inside = [row for row in compared.rows if row["indistinguishable"]]
    if compared.verdict == "supported" or members < 2:
        return []
    if compared.verdict == "unknown":
        return [f"How far the data support the choice is not known: {compared.reason}. Run a second seed."]
    over = " and ".join(compared.levels)
    which = _names(inside)
    if compared.verdict == "contradicted":
        return [
            f"The scores speak against the choice: at 95 % the lowest is among {which} (errors over {over}). See "
            "`raydp analyze heuristics`."
        ]
    text = (
        f"The data do not decide which configuration has the lowest score: at 95 % it may be any of {len(inside)} of "
        f"{members}, {which} (errors over {over})."
    )
    if compared.further_seeds:
        total = sum(row["seeds"] for row in compared.further_seeds)
        asked = ", ".join(f"{row['seeds']} more of {_name(row)}" for row in compared.further_seeds[:_NAMED])
        more = ", ..." if len(compared.further_seeds) > _NAMED else ""
        runs = "one further run" if total == 1 else f"{total} further runs"
        unknown = "" if "secrets" in compared.levels else " How much the choice of secrets adds is not known here."
        return [f"{text} If the means stay, {runs} would decide it: {asked}{more}.{unknown}"]
    return [f"{text} {compared.reason[0].upper()}{compared.reason[1:]}." if compared.reason else text]


def _names(rows: list[dict[str, Any]]) -> str:
    """The first few configurations."""
    return ", ".join(map(_name, rows[:_NAMED])) + (", ..." if len(rows) > _NAMED else "")


def _name(row: Mapping[str, Any]) -> str:
    return str(Configuration(**{name: row[name] for name in HYPERPARAMETERS}))


def _beaten(means: pd.DataFrame, passed: NDArray[np.bool_], selected: int) -> list[str]:
    """A warning if another configuration has less loss and a lower score: what was measured speaks against the rule."""
    loss, score = means["utility_loss"].to_numpy(), means["score"].to_numpy()
    better = passed & (loss < loss[selected]) & (score < score[selected])
    if not better.any():
        return []
    one = configurations(means)[int(np.where(better, score, np.inf).argmin())]
    return [
        f"{int(better.sum())} of {int(passed.sum())} configurations have less loss and a lower score than the selected "
        f"one, such as {one}: the rule does not look at the scores, and they speak against it here. See `raydp analyze "
        "heuristics`."
    ]


def _as_dict(configuration: Configuration) -> dict[str, Any]:
    """A configuration for JSON."""
    return {name: getattr(configuration, name) for name in HYPERPARAMETERS}
