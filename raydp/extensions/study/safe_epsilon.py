"""Which ε: the largest one whose leak keeps to a limit, from the measured scores at several ε."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.equivalents import unknown_errors
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.points import configurations
from raydp.analysis.tables.utility_filter import loss_threshold
from raydp.search_spaces.configuration import Configuration, Hyperparameters

Array = NDArray[np.float64]
EPSILON = "privacy.target_epsilon"


class SafeConfiguration(Hyperparameters):
    """A configuration with its mean figures, and the probability that its leak keeps to a limit."""

    probability: float
    score: float
    utility_loss: float


class Level(TypedDict):
    """What was found at one ε.

    Keys:
        epsilon: ε, the target.
        configurations, admissible: number of configurations, and of those that keep the utility.
        safest: the admissible configuration whose leak keeps to the limit with the highest
            probability; None if none is admissible.
        lowest, highest: posterior mean of the lowest and of the highest leak of the admissible
            configurations.
        highest_interval: interval of the highest leak.
        probability_all: probability that every admissible configuration keeps to the limit.
    """

    epsilon: float
    configurations: int
    admissible: int
    safest: SafeConfiguration | None
    lowest: float | None
    highest: float | None
    highest_interval: list[float] | None
    probability_all: float | None


@dataclass(frozen=True, kw_only=True)
class SafeEpsilon:
    """The answer to "which ε?".

    Attributes:
        max_leak, max_loss, confidence: the limits, and the probability that is asked for.
        levels: what was found at each ε, from the smallest to the largest.
        epsilon: the largest ε at which a configuration is admissible and keeps to the limit with
            the confidence; None if there is none.
        configuration: that configuration.
        gold: the largest ε up to which every admissible configuration of every smaller measured ε
            keeps to the limit with the confidence: what a certificate by ε alone would need. None
            if the smallest ε does not.
    """

    max_leak: float
    max_loss: float | None
    confidence: float
    levels: tuple[Level, ...]
    epsilon: float | None
    configuration: SafeConfiguration | None
    gold: float | None


def safe_epsilon(
    points: pd.DataFrame,
    *,
    max_leak: float,
    max_loss: float | None = None,
    min_gain_share: float | None = None,
    confidence: float = 0.95,
    secrets: tuple[pd.DataFrame, str] | None = None,
    logarithmic: bool = False,
) -> SafeEpsilon:
    """Return the largest ε whose leak keeps to a limit, and ε^gold.

    Args:
        points: finished runs at several ε, with the setting `privacy.target_epsilon`.
        max_leak: the largest allowed score.
        max_loss, min_gain_share: which configurations are admissible, by their mean loss.
        confidence: the probability with which the leak must keep to the limit.
        secrets: the values by secret and the name of the score, to include the choice of the
            secrets in the errors.
        logarithmic: whether the score is a logarithm.

    The scores of all ε are modelled jointly (see `score_posterior`): ln ε is a coordinate, so that
    each ε tells of the others. The limit is of one model's absolute leak, so that the error which
    all configurations share counts.

    Raises:
        ValueError: the table has no ε, or one alone, or does not tell the errors of its scores.

    Source: Hu et al. 2025, section 3.3 and Figure 4 (ε^gold).
    """
    measured = MeasuredScores.of(points, secrets, logarithmic=logarithmic)
    means = measured.means
    listed = configurations(means)
    epsilons = np.array([_epsilon_of(c) for c in listed])
    if len(set(epsilons.tolist())) < 2:
        raise ValueError(
            "POINTS must have runs at two values of ε or more, got one. Run a study with "
            "axes: {privacy.target_epsilon: [1, 2, 4]}."
        )
    # Without errors no probability is known, as for `select`.
    if (unknown := unknown_errors(means)) is not None:
        raise ValueError(
            f"POINTS must tell the errors of the scores, got a table where {unknown}. Run another seed."
        )
    threshold = loss_threshold(means, max_loss=max_loss, min_gain_share=min_gain_share)
    useful = np.ones(len(means), dtype=np.bool_)
    if threshold is not None:
        useful = means["utility_loss"].to_numpy() <= threshold
    posterior = measured.posterior()
    levels = tuple(
        _level(posterior, means, listed, (epsilons == one), useful, one, max_leak, confidence)
        for one in sorted(set(epsilons.tolist()))
    )
    return _answer(
        levels, max_leak, None if threshold is None else float(threshold.max()), confidence
    )


def _epsilon_of(configuration: Configuration) -> float:
    """Return the target ε of a configuration of a study."""
    value = configuration.settings.get(EPSILON)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"POINTS must have {EPSILON} in the settings of every row, got a row without. Use the "
            "points of a study with this axis."
        )
    return float(value)


def _level(
    posterior: Posterior,
    means: pd.DataFrame,
    listed: list[Configuration],
    at: NDArray[np.bool_],
    useful: NDArray[np.bool_],
    epsilon: float,
    max_leak: float,
    confidence: float,
) -> Level:
    """Return what was found at one ε."""
    members = np.flatnonzero(at & useful)
    nothing: Level = {
        "epsilon": epsilon,
        "configurations": int(at.sum()),
        "admissible": len(members),
        "safest": None,
        "lowest": None,
        "highest": None,
        "highest_interval": None,
        "probability_all": None,
    }
    if not len(members):
        return nothing
    # One model's leak: with the error that all configurations share.
    draws = np.column_stack([posterior.absolute_of(slice(m, m + 1))[:, 0] for m in members])
    keeps = draws <= max_leak
    probabilities = keeps.mean(axis=0)
    # Of equally safe configurations, the most useful one.
    losses = means["utility_loss"].to_numpy()[members]
    best = int(np.lexsort([losses, -probabilities])[0])
    of_best = means.iloc[members[best]]
    highest = draws.max(axis=1)
    low, high = np.quantile(highest, [(1 - confidence) / 2, (1 + confidence) / 2])
    named: Hyperparameters = listed[members[best]].to_json()
    safest: SafeConfiguration = {
        **named,
        "probability": float(probabilities[best]),
        "score": float(of_best["score"]),
        "utility_loss": float(of_best["utility_loss"]),
    }
    return {
        **nothing,
        "safest": safest,
        "lowest": float(np.median(draws.min(axis=1))),
        "highest": float(np.median(highest)),
        "highest_interval": [float(low), float(high)],
        "probability_all": float(keeps.all(axis=1).mean()),
    }


def _answer(
    levels: tuple[Level, ...], max_leak: float, max_loss: float | None, confidence: float
) -> SafeEpsilon:
    """Return the largest ε with a safe configuration, and the largest one up to which all are."""
    safe = [
        (level["epsilon"], found)
        for level in levels
        if (found := level["safest"]) is not None and found["probability"] >= confidence
    ]
    gold = None
    for level in levels:
        # An ε without admissible configurations tells nothing, and breaks no promise.
        if level["probability_all"] is not None and level["probability_all"] < confidence:
            break
        gold = level["epsilon"] if level["probability_all"] is not None else gold
    return SafeEpsilon(
        max_leak=max_leak,
        max_loss=max_loss,
        confidence=confidence,
        levels=levels,
        epsilon=safe[-1][0] if safe else None,
        configuration=safe[-1][1] if safe else None,
        gold=gold,
    )
