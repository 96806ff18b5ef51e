"""How well scores tell members from non-members: area under the curve, accuracy, true positives at few false ones.

A score is higher for what is more likely a member; "at least the threshold" is called a member. Members and non-members
weigh one half each, whatever their numbers. All intervals are two-sided, at 95 % unless another confidence is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, norm, rankdata

Scores = NDArray[np.float64]
CONFIDENCE = 0.95
RATES = {"1pct": 0.01, "01pct": 0.001}
"""False positive rates that are reported, by what they are called in names."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        value: the figure on these data.
        low, high: the interval, in [0, 1].
        std_error: where the method has one.
    """

    value: float
    low: float
    high: float
    std_error: float | None = None

    def document(self, name: str) -> dict[str, Any]:
        """As JSON says it: the figure, and beside it its interval."""
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


def scores_of(values: ArrayLike, name: str) -> Scores:
    """[N] finite or infinite numbers, at least one.

    Raises:
        ValueError: there is none, or one is NaN.
    """
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise ValueError(
            f"{name} must be a list of numbers without NaN, got shape {scores.shape}. Check what the scores come from."
        )
    return scores


def auc(members: ArrayLike, nonmembers: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Area under the ROC curve: the probability that a member scores higher than a non-member, a tie counting half.

    Args:
        members, nonmembers: [M] and [N] scores.

    Returns:
        The area, DeLong's standard error (None with fewer than two of either) and the normal interval from it. Where
        members and non-members do not overlap, or all are tied, that error is 0; the interval is then the exact one of
        min(M, N) disjoint pairs, which are independent trials.

    Source: DeLong et al. 1988; by midranks as in Sun and Xu 2014.
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    m, n = len(x), len(y)
    together = rankdata(np.concatenate([x, y]))
    value = float((together[:m].sum() / m - (m + 1) / 2) / n)
    error = None
    if m > 1 and n > 1:
        of_members = (together[:m] - rankdata(x)) / n
        of_nonmembers = 1 - (together[m:] - rankdata(y)) / m
        error = math.sqrt(of_members.var(ddof=1) / m + of_nonmembers.var(ddof=1) / n)
    if not error:
        pairs = min(m, n)
        low, high = clopper_pearson(value * pairs, pairs, confidence=confidence)
        return Estimate(value=value, low=low, high=high, std_error=error)
    half = float(norm.ppf(0.5 + confidence / 2)) * error
    return Estimate(value=value, low=max(0.0, value - half), high=min(1.0, value + half), std_error=error)


def clopper_pearson(successes: float, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of a binomial rate (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes <= 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes >= trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    return low, high


def tpr_at_fpr(
    members: ArrayLike, nonmembers: ArrayLike, max_fpr: float, *, confidence: float = CONFIDENCE
) -> Estimate:
    """The largest true positive rate of a threshold whose false positive rate on these data is at most max_fpr.

    Nothing is interpolated: scores that are tied are on one side of the threshold together. With fewer than 1/max_fpr
    non-members no false positive is allowed, and the figure is the true positive rate at none.

    Returns:
        The rate, and Clopper and Pearson's interval over members, at the threshold that was found: what the
        non-members' sampling does to the threshold is not in it.
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    allowed = int(np.searchsorted(np.arange(len(y) + 1) / len(y), max_fpr, side="right")) - 1
    found = len(x)
    if allowed < len(y):
        first_refused = np.partition(y, len(y) - 1 - allowed)[len(y) - 1 - allowed]
        found = int((x > first_refused).sum())
    low, high = clopper_pearson(found, len(x), confidence=confidence)
    return Estimate(value=found / len(x), low=low, high=high)


def best_threshold(members: ArrayLike, nonmembers: ArrayLike) -> tuple[float, float]:
    """The score of these data that tells members from non-members best as a threshold.

    Returns:
        The threshold and the balanced accuracy that it has here. Of thresholds that are equally good it is the first
        in the order of the data, members before non-members, which is the order that Song and Mittal's code goes
        through; their code computes the accuracy in the same way, so that rounding breaks the same ties.

    Source: Song and Mittal 2021, github.com/inspire-group/membership-inference-evaluation, `_thre_setting`.
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    candidates = np.concatenate([x, y])
    caught = (len(x) - np.searchsorted(np.sort(x), candidates, side="left")) / len(x)
    cleared = np.searchsorted(np.sort(y), candidates, side="left") / len(y)
    accuracies = 0.5 * (caught + cleared)
    best = int(accuracies.argmax())
    return float(candidates[best]), float(accuracies[best])


def accuracy(caught: ArrayLike, cleared: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Balanced accuracy of decisions that were made without looking at these data.

    Args:
        caught: [M] bool, members that were called members.
        cleared: [N] bool, non-members that were not.

    Returns:
        Half the sum of the two rates, and the interval that combines their Clopper and Pearson intervals by squaring
        and adding (Newcombe 1998; Zou and Donner 2008).
    """
    right = [np.asarray(caught, np.bool_), np.asarray(cleared, np.bool_)]
    rates = [float(r.mean()) for r in right]
    limits = [clopper_pearson(int(r.sum()), len(r), confidence=confidence) for r in right]
    value = 0.5 * (rates[0] + rates[1])
    below = 0.5 * math.hypot(*(rate - low for rate, (low, _) in zip(rates, limits, strict=True)))
    above = 0.5 * math.hypot(*(high - rate for rate, (_, high) in zip(rates, limits, strict=True)))
    return Estimate(value=value, low=max(0.0, value - below), high=min(1.0, value + above))


def accuracy_at(members: ArrayLike, nonmembers: ArrayLike, threshold: float) -> Estimate:
    """Balanced accuracy at a threshold that comes from elsewhere."""
    return accuracy(np.asarray(members) >= threshold, np.asarray(nonmembers) < threshold)


def split_accuracy(members: ArrayLike, nonmembers: ArrayLike) -> Estimate:
    """Balanced accuracy of thresholds that are chosen on one half of the scores and tried on the other, each half once.

    An attacker who knows of one half who is a member has this much of the other; where nothing leaks it is 1/2 on
    average. The halves are every second score: shuffle what has an order.

    Returns:
        The accuracy with the interval of `accuracy`, and its standard error as if thresholds were given.

    Source: Kaplan et al. 2024, section 2.2.2 and appendix E (half of the members are known to the attacker).
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    if min(len(x), len(y)) < 2:
        raise ValueError(
            f"members and nonmembers must be two each to choose a threshold and try it, got {len(x)} and {len(y)}. Use "
            "more data."
        )
    caught, cleared = np.zeros(len(x), np.bool_), np.zeros(len(y), np.bool_)
    for half in range(2):
        threshold, _ = best_threshold(x[half::2], y[half::2])
        caught[1 - half :: 2] = x[1 - half :: 2] >= threshold
        cleared[1 - half :: 2] = y[1 - half :: 2] < threshold
    error = 0.5 * math.hypot(caught.std() / math.sqrt(len(x)), cleared.std() / math.sqrt(len(y)))
    return replace(accuracy(caught, cleared), std_error=error)


def best_accuracy(members: ArrayLike, nonmembers: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Balanced accuracy at the threshold that is best on these data themselves: above 1/2 also where nothing leaks.

    Returns:
        The accuracy, and an interval of what the distributions' own best threshold reaches, never below 1/2. It holds
        for all thresholds at once (Dvoretzky, Kiefer and Wolfowitz's inequality with Massart's constant 1990, half of
        the error probability for each of the two distributions). Where members score lower than non-members, the
        threshold that was found here does worse than that on fresh data.
    """
    value = best_threshold(members, nonmembers)[1]
    counts = (np.size(members), np.size(nonmembers))
    half = 0.5 * sum(math.sqrt(math.log(4 / (1 - confidence)) / (2 * count)) for count in counts)
    return Estimate(value=value, low=max(0.5, value - half), high=min(1.0, value + half))


def curve_figures(members: ArrayLike, nonmembers: ArrayLike) -> dict[str, Any]:
    """What needs no threshold from elsewhere, as JSON data: auc and its standard error, the true positive rates at
    1 % and 0.1 % false positives, each with its interval.

    A rate that is below one non-member is not measured: at 0.1 % it is null, with the reason. At 1 %, the rate that
    attacks are compared by, the figure is then that of no false positive at all, and `reason` says it.
    """
    area = auc(members, nonmembers)
    document: dict[str, Any] = {**area.document("auc"), "auc_std_error": area.std_error}
    reasons = []
    count = np.size(nonmembers)
    for name, rate in RATES.items():
        figure = tpr_at_fpr(members, nonmembers, rate).document(f"tpr_at_{name}_fpr")
        if count * rate < 1 and name == "01pct":
            figure = dict.fromkeys(figure)
            reasons.append(f"tpr_at_01pct_fpr needs 1,000 non-members, got {count}")
        elif count * rate < 1:
            reasons.append(f"tpr_at_1pct_fpr is at no false positive: 1 % needs 100 non-members, got {count}")
        document |= figure
    return document | ({"reason": "; ".join(reasons)} if reasons else {})
