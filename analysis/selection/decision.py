"""The decision that a sweep ends in: how sure the choice is, what it may cost, and what else could be chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.selection.rules import CONFIDENCE
from analysis.statistics.results import because
from analysis.surface.posterior import Posterior
from analysis.tables.points import configurations
from search_spaces.configuration import Hyperparameters

Array = NDArray[np.float64]
State = Literal["decided", "equivalent", "undecided"]

TOLERANCE = 0.1
"""The tolerance of a decision by default. Two scores that differ by less are equivalent."""
MOST_ALTERNATIVES = 3
_NEGLIGIBLE = 0.01  # an alternative that is the lowest with a smaller probability does not matter
_NO_SEEDS = "no configuration has two seeds, so the errors over seeds are guessed from how smooth the scores are"
_NO_SPREAD = "no score differs between two seeds, so the errors of the scores are not known"


class Alternative(Hyperparameters):
    """A configuration that could be chosen instead.

    `probability` is the probability that it has the lowest score, `score` and `score_interval` are as the decision's
    own `estimate` and `interval`, and `loss_difference` is its mean utility loss minus that of the selected one.
    """

    probability: float
    score: float
    score_interval: list[float]
    loss_difference: float


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the measured scores say about a selected configuration.

    Attributes:
        state: "decided": the selected configuration has the lowest score with probability 95 % or more. "equivalent":
            its score is within the tolerance of the lowest with that probability. Else "undecided".
        confidence, tolerance: the probability and the tolerance of `state`. A tolerance of 0.1 allows a score that is
            10 % higher; for a score that is a logarithm, a difference of ln 1.1.
        probability: that the selected configuration has the lowest score.
        probability_within: that its score is within the tolerance of the lowest. Scores that can be negative and are no
            logarithms have no tolerance.
        expected_regret: how much higher than the lowest its score is, in expectation, in the score's unit.
        relative_regret: the same as a share of the lowest score. None if the score can be negative and is no logarithm.
        estimate: the expected score given all measurements. The measured mean of a selected configuration is lower than
            its true score on average, because it was selected for being low; the estimate is corrected for that.
        interval: the interval of the true score for secrets of this kind, at the same confidence.
        utility_probability: that the utility loss keeps to the threshold. None without a threshold, or if no
            configuration has two seeds.
        alternatives: the others that matter, the most probable first.
        pool_size: number of configurations that were compared.
        reason: why the errors of the scores are not known, so that several configurations are never decided. None if
            they are known.
    """

    state: State
    confidence: float
    tolerance: float
    probability: float
    probability_within: float
    expected_regret: float
    relative_regret: float | None
    estimate: float
    interval: tuple[float, float]
    utility_probability: float | None
    alternatives: tuple[Alternative, ...]
    pool_size: int
    reason: str | None

    def to_dict(self) -> dict[str, object]:
        """Return the decision as data for JSON."""
        return {
            "state": self.state,
            "confidence": self.confidence,
            "tolerance": self.tolerance,
            "probability": self.probability,
            "probability_within": self.probability_within,
            "expected_regret": self.expected_regret,
            **({} if self.relative_regret is None else {"relative_regret": self.relative_regret}),
            "estimate": self.estimate,
            "interval": list(self.interval),
            **({} if self.utility_probability is None else {"utility_probability": self.utility_probability}),
            "alternatives": list(self.alternatives),
            "pool_size": self.pool_size,
            **because(self.reason),
        }


def decide(
    means: pd.DataFrame,
    pool: NDArray[np.bool_],
    selected: int,
    scores: Posterior,
    *,
    logarithmic: bool,
    certainty: Array | None,
    confidence: float = CONFIDENCE,
    tolerance: float = TOLERANCE,
) -> Decision:
    """Say how sure the choice of one member of a pool is.

    Args:
        means: configuration means.
        pool: [m] the configurations to compare, the selected one among them.
        selected: position of the selected configuration.
        scores: the posterior of the scores.
        logarithmic: whether the score is a logarithm.
        certainty: [m] probability that each configuration keeps to the utility threshold, None without one.
        confidence, tolerance: the probability and the tolerance of the decision's state.

    The probabilities hold under the model of `score_posterior`. They are not corrected for the number of members,
    because a posterior needs no correction: the same members are compared in every draw.
    """
    members = np.flatnonzero(pool)
    own = int(np.flatnonzero(members == selected)[0])
    drawn = scores.draws[:, members]
    expected = scores.own_mean[members]
    limited = scores.limited[:, members]
    lowest = drawn.min(axis=1)
    # Several members may share the lowest draw, such as zeros; each of them counts.
    probability = (drawn <= lowest[:, None]).mean(axis=0)
    within = float((drawn[:, own] <= highest_within(scores, lowest, tolerance, logarithmic=logarithmic)).mean())
    reason = None
    if means["num_seeds"].max() < 2:
        reason = _NO_SEEDS
    elif not (means["score_std"] > 0).any() and np.ptp(drawn, axis=0).max() == 0:
        reason = _NO_SPREAD
    if reason is not None and len(members) > 1:
        state: State = "undecided"
    elif probability[own] >= confidence:
        state = "decided"
    else:
        state = "equivalent" if within >= confidence else "undecided"
    regret = max(0.0, float((limited[:, own] - limited.min(axis=1)).mean()))
    loss = means["utility_loss"].to_numpy()
    listed = configurations(means)
    others = [k for k in np.lexsort([expected, -probability]) if k != own and probability[k] >= _NEGLIGIBLE]
    absolute = scores.absolute
    alternatives: list[Alternative] = [
        {
            **listed[int(members[k])].to_json(),
            "probability": float(probability[k]),
            "score": float(expected[k]),
            "score_interval": list(_interval(absolute[:, members[k]], confidence)),
            "loss_difference": float(loss[members[k]] - loss[selected]),
        }
        for k in others[:MOST_ALTERNATIVES]
    ]
    return Decision(
        state=state,
        confidence=confidence,
        tolerance=tolerance,
        probability=float(probability[own]),
        probability_within=within,
        expected_regret=regret,
        relative_regret=_relative(regret, float(limited.min(axis=1).mean()), scores, logarithmic=logarithmic),
        estimate=float(expected[own]),
        interval=_interval(absolute[:, selected], confidence),
        utility_probability=None if certainty is None else float(certainty[selected]),
        alternatives=tuple(alternatives),
        pool_size=len(members),
        reason=reason,
    )


def chance(probability: float) -> str:
    """Return a probability for a reader. Draws never show that it is 0 or 1."""
    if probability > 0.999:
        return "more than 99.9 %"
    if probability < 0.001:
        return "less than 0.1 %"
    return f"{100 * probability:.3g} %"


def highest_within(scores: Posterior, lowest: Array, tolerance: float, *, logarithmic: bool) -> Array:
    """Return the highest score within a tolerance of each lowest one, in the shape of `lowest`.

    A share of a score means nothing if the score can be negative and is no logarithm. It then has no tolerance.
    """
    if logarithmic:
        return lowest + math.log1p(tolerance)
    return lowest + tolerance * np.abs(lowest) if scores.ratio else lowest


def _relative(regret: float, lowest: float, scores: Posterior, *, logarithmic: bool) -> float | None:
    """Return the regret relative to the lowest score."""
    if logarithmic:
        return math.expm1(min(regret, 700.0))
    if not scores.ratio or lowest <= 0:
        return 0.0 if regret == 0 else None
    return regret / lowest


def _interval(draws: Array, confidence: float) -> tuple[float, float]:
    """Return the central interval of some draws."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
