"""The decision that ends a sweep: how sure the choice is, its cost, and the alternatives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.contenders import ALONE
from raydp.analysis.selection.equivalents import Precision, unknown_errors
from raydp.analysis.statistics.results import because, given
from raydp.analysis.surface.outlook import Outlook, outlook, settled
from raydp.analysis.surface.posterior import Posterior
from raydp.analysis.surface.what_if import MeasuredScores
from raydp.analysis.tables.points import configurations
from raydp.search_spaces.configuration import Hyperparameters

Array = NDArray[np.float64]
State = Literal["decided", "equivalent", "undecided", "only one"]

MOST_ALTERNATIVES = 3
# of a larger table it is not computed what would decide, because that takes long
_MOST_CONFIGURATIONS = 100
_NEGLIGIBLE = 0.01  # an alternative that is the lowest with a smaller probability does not matter


class Alternative(Hyperparameters):
    """A configuration that could be chosen instead.

    `probability` is the probability that it has the lowest score, `score` and `score_interval` are
    as the decision's own `estimate` and `interval`, and `loss_difference` is its mean utility loss
    minus that of the selected one.
    """

    probability: float
    score: float
    score_interval: list[float]
    loss_difference: float


class Equivalent(Hyperparameters):
    """Another configuration whose score is within the tolerance of the lowest with the confidence.

    `probability_within` is the probability of that, `score` is as the decision's own `estimate`,
    `loss_difference` is its mean utility loss minus that of the selected one, and `compute` is b·T.
    """

    probability_within: float
    score: float
    loss_difference: float
    compute: int


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The certainty of a selected configuration, given the measured scores.

    If the errors of the scores are not known (see `unknown_errors`), nothing is decided: the
    probabilities, the regret, the estimate and the interval are None, no alternative is listed, and
    `reason` says why. If only one configuration was compared, the probabilities and the regret are
    None.

    Attributes:
        state: "decided": the selected configuration has the lowest score with the confidence or
            more. "equivalent": its score is within the tolerance of the lowest with that
            probability. "only one": only this configuration was compared, because no other passes
            the constraints, or is sure to by a rule that asks for it. Such a rule is undecided if
            this configuration is not sure to pass either, though it may be the only one whose mean
            passes: its true loss may be above the threshold, and that of another one below. Else
            "undecided".
        confidence, tolerance: the probability and the tolerance of `state`. A tolerance of 0.1
            allows 10 % more above no leak; for a score that is a logarithm, log 1.1 to its base.
        probability: that the selected configuration has the lowest score.
        probability_within: that its score is within the tolerance of the lowest. Scores that can be
            negative and are no logarithms have no tolerance.
        expected_regret: how much higher than the lowest its score is, in expectation, in the
            score's unit.
        relative_regret: the same as a share of the lowest score above no leak. None if it can be
            negative and the score is no logarithm.
        estimate: the expected score given all measurements. The measured mean of a selected
            configuration is lower than its true score on average, because it was selected for being
            low; the estimate is corrected for that.
        interval: the interval of the true score for secrets of this kind, at the same confidence.
        utility_probability: that the utility loss keeps to the threshold. None without a threshold,
            or if no configuration has two seeds.
        alternatives: the others that matter, the most probable first.
        equivalents: the others whose scores are within the tolerance of the lowest with the
            confidence, the most useful first. Empty if the selected configuration's own score is
            not.
        pool_size: number of configurations that were compared.
        reason: why nothing is decided whatever the scores are: their errors are not known, no
            configuration keeps to the utility threshold with the confidence, or only one was
            compared. None if none of these holds.
    """

    state: State
    confidence: float
    tolerance: float
    probability: float | None = None
    probability_within: float | None = None
    expected_regret: float | None = None
    relative_regret: float | None = None
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    utility_probability: float | None
    alternatives: tuple[Alternative, ...] = ()
    equivalents: tuple[Equivalent, ...] = ()
    pool_size: int
    reason: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the decision as data for JSON."""
        return {
            "state": self.state,
            "confidence": self.confidence,
            "tolerance": self.tolerance,
            "probability": self.probability,
            "probability_within": self.probability_within,
            "expected_regret": self.expected_regret,
            **given(relative_regret=self.relative_regret),
            "estimate": self.estimate,
            "interval": None if self.interval is None else list(self.interval),
            **given(utility_probability=self.utility_probability),
            "alternatives": list(self.alternatives),
            "equivalents": list(self.equivalents),
            "pool_size": self.pool_size,
            **because(self.reason),
        }


def decide(
    means: pd.DataFrame,
    pool: NDArray[np.bool_],
    selected: int,
    scores: Posterior,
    *,
    log_base: float | None,
    certainty: Array | None,
    precision: Precision,
    needs_utility: bool = False,
    highest: float = math.inf,
) -> Decision:
    """Say how sure the choice of one member of a pool is.

    Args:
        means: configuration means.
        pool: [m] the configurations to compare, the selected one among them.
        selected: position of the selected configuration.
        scores: the posterior of the scores.
        log_base: as of `Evidence`.
        certainty: [m] probability that each configuration keeps to the utility threshold, None
            without one.
        precision: the probability and the tolerance of the decision's state.
        needs_utility: whether the rule requires that the utility keeps to the threshold with the
            confidence. If that of the selected configuration does not, nothing is decided.
        highest: the largest value that the score can take. Intervals and estimates do not exceed
            it.

    The probabilities hold under the model of `score_posterior`. They are not corrected for the
    number of members, because a posterior needs no correction: the same members are compared in
    every draw.
    """
    members = np.flatnonzero(pool)
    useful = None if certainty is None else float(certainty[selected])
    undecided = Decision(
        state="undecided",
        confidence=precision.confidence,
        tolerance=precision.tolerance,
        utility_probability=useful,
        pool_size=len(members),
    )
    # Without known errors, every probability would be invented.
    if (unknown := unknown_errors(means)) is not None:
        return replace(undecided, reason=unknown)
    # The state follows from the draws: the lowest, or within the tolerance of the lowest.
    lowest, within = scores.chances(pool, precision.tolerance, log_base=log_base)
    chances = _Chances(lowest, within, selected, precision.confidence)
    state, reason = chances.state(len(members) == 1, useful if needs_utility else None)
    stated = replace(undecided, state=state, reason=reason)
    # The estimates of the scores. A single configuration has no chances and no regret.
    estimated = _estimated(stated, means, members, scores, chances, highest)
    if len(members) == 1:
        return estimated
    return _with_regret(estimated, members, scores, chances, log_base=log_base)


@dataclass(frozen=True)
class _Chances:
    """How probable each configuration is the lowest, and within the tolerance of it: [m] each."""

    lowest: Array
    within: Array
    selected: int
    confidence: float

    def state(self, alone: bool, useful: float | None) -> tuple[State, str | None]:
        """Return the state, and why nothing is decided whatever the scores are.

        If the rule asks for sure utility, `useful` is the probability of the selected one's.
        """
        if useful is not None and useful < self.confidence:
            sure = chance(self.confidence)
            return "undecided", (
                f"no configuration keeps to the utility threshold with a probability of {sure}"
            )
        if alone:
            return "only one", ALONE
        if self.lowest[self.selected] >= self.confidence:
            return "decided", None
        within = self.within[self.selected] >= self.confidence
        return ("equivalent" if within else "undecided"), None


def _estimated(
    decision: Decision,
    means: pd.DataFrame,
    members: NDArray[np.intp],
    scores: Posterior,
    chances: _Chances,
    highest: float,
) -> Decision:
    """Add the estimate, and the other members that matter: probable, or within the tolerance."""
    listed, loss = configurations(means), means["utility_loss"].to_numpy()
    # The model may expect more than the largest value that the score can take.
    expected = np.minimum(scores.own_mean, highest)
    others = members[members != chances.selected]
    # The alternatives: the most probable first, of equals the lower expected score.
    probability = chances.lowest
    probable = [int(k) for k in others[np.lexsort([expected[others], -probability[others]])]]
    alternatives: list[Alternative] = [
        {
            **listed[k].to_json(),
            "probability": float(probability[k]),
            "score": float(expected[k]),
            "score_interval": list(_interval(scores, k, chances.confidence, highest)),
            "loss_difference": float(loss[k] - loss[chances.selected]),
        }
        for k in probable[:MOST_ALTERNATIVES]
        if probability[k] >= _NEGLIGIBLE
    ]
    # The equivalents: the most useful first. There are none of an undecided choice.
    sure = others[chances.within[others] >= chances.confidence]
    as_good = sure if decision.state != "undecided" else others[:0]
    equivalents: list[Equivalent] = [
        {
            **listed[int(k)].to_json(),
            "probability_within": float(chances.within[k]),
            "score": float(expected[k]),
            "loss_difference": float(loss[k] - loss[chances.selected]),
            "compute": listed[k].compute,
        }
        for k in as_good[np.argsort(loss[as_good], kind="stable")]
    ]
    return replace(
        decision,
        estimate=float(expected[chances.selected]),
        interval=_interval(scores, chances.selected, chances.confidence, highest),
        alternatives=tuple(alternatives),
        equivalents=tuple(equivalents),
    )


def _with_regret(
    decision: Decision,
    members: NDArray[np.intp],
    scores: Posterior,
    chances: _Chances,
    *,
    log_base: float | None,
) -> Decision:
    """Add the selected member's chances, and by how much its score exceeds the lowest."""
    limited = scores.limited[:, members]
    lowest = limited.min(axis=1)
    regret = max(0.0, float((limited[:, members == chances.selected][:, 0] - lowest).mean()))
    # Relative to the lowest score, unless it can be negative and is no logarithm.
    relative = 0.0 if regret == 0 else None
    if log_base is not None:
        # A difference d of logarithms to the base B is a relative one of B^d - 1. The cap avoids
        # overflow.
        relative = math.expm1(min(regret * math.log(log_base), 700.0))
    elif scores.ratio and scores.no_leak is not None and lowest.mean() > scores.no_leak:
        relative = regret / float(lowest.mean() - scores.no_leak)
    return replace(
        decision,
        probability=float(chances.lowest[chances.selected]),
        probability_within=float(chances.within[chances.selected]),
        expected_regret=regret,
        relative_regret=relative,
    )


def what_would_decide(
    decision: Decision,
    points: pd.DataFrame,
    pool: NDArray[np.bool_],
    *,
    by_secret: tuple[pd.DataFrame, str] | None,
    log_base: float | None,
    no_leak: float | None,
) -> Outlook:
    """Return what would decide which member of a pool has the lowest score.

    It fits the model several times.

    Args:
        decision: the decision between the members.
        points: the points table.
        pool: [m] the compared configurations.
        by_secret: as for `select`.
        log_base, no_leak: as for `select`.
    """
    confidence, tolerance = decision.confidence, decision.tolerance
    enough = Outlook(
        sentence="By the model of the scores no further seeds are needed: with a probability of "
        f"{100 * confidence:g} % or more, a score is the lowest or within the tolerance of the "
        "lowest."
    )
    if decision.reason is not None:
        return Outlook(sentence=f"{decision.reason[0].upper()}{decision.reason[1:]}.")
    if decision.state != "undecided":
        return enough
    if len(pool) > _MOST_CONFIGURATIONS:
        limit = f"a table of more than {_MOST_CONFIGURATIONS} configurations"
        return Outlook(sentence=f"How many further seeds would decide is not computed for {limit}.")
    measured = MeasuredScores.of(points, by_secret, log_base=log_base)
    measured = replace(measured, no_leak=no_leak)
    # A rule that does not look at the scores may select another configuration than the one that is
    # known to be lowest.
    if settled(measured, pool, confidence=confidence, tolerance=tolerance):
        return enough
    return outlook(measured, pool, confidence=confidence, tolerance=tolerance)


def chance(probability: float) -> str:
    """Return a probability for a reader. Draws never show that it is 0 or 1."""
    if probability > 0.999:
        return "more than 99.9 %"
    if probability < 0.001:
        return "less than 0.1 %"
    return f"{100 * probability:.3g} %"


def _interval(
    scores: Posterior, configuration: int, confidence: float, highest: float
) -> tuple[float, float]:
    """Return the central interval of a score, limited to the largest value that it can take."""
    draws = scores.absolute_of(slice(configuration, configuration + 1))
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2]).clip(max=highest)
    return float(low), float(high)
