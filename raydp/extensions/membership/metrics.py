"""Figures on how well scores separate members from non-members.

They are AUC, accuracy, and true positives at few false positives.

A higher score means more likely a member. A score of at least the threshold is called a member.
Members and non-members weigh one half each, regardless of their numbers. All intervals are
two-sided, at 95 % unless another confidence is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta, norm, rankdata

Scores = NDArray[np.float64]
CONFIDENCE = 0.95
RATES = {"1pct": 0.01, "01pct": 0.001}
"""Reported false positive rates, by their names in figures."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its interval.

    Attributes:
        value: the figure on the given data.
        low, high: ends of the interval, in [0, 1].
        std_error: standard error, None if the method has none.
    """

    value: float
    low: float
    high: float
    std_error: float | None = None

    def document(self, name: str) -> dict[str, object]:
        """Return the figure and its interval as data for JSON."""
        return {name: self.value, f"{name}_interval": [self.low, self.high]}


def scores_of(values: ArrayLike, name: str) -> Scores:
    """Return the values as an array [N] of finite or infinite numbers, at least one.

    Raises:
        ValueError: there is no value, or a value is NaN.
    """
    scores = np.asarray(values, np.float64)
    if scores.ndim != 1 or not len(scores) or np.isnan(scores).any():
        raise ValueError(
            f"{name} must be a list of numbers without NaN, got shape {scores.shape}. Check what "
            "the scores come from."
        )
    return scores


def auc(members: ArrayLike, nonmembers: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return the area under the ROC curve: P[a member scores higher], with ties counting half.

    Args:
        members, nonmembers: [M] and [N] scores.

    Returns:
        The area, DeLong's standard error (None with fewer than two of either) and its normal
        interval. If members and non-members do not overlap, or all are tied, the error is 0. The
        interval is then the exact binomial interval for min(M, N) disjoint pairs, which are
        independent trials.

    Source: DeLong et al. 1988; by midranks as in Sun and Xu 2014.
    """
    # Area by midranks.
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    m, n = len(x), len(y)
    together = rankdata(np.concatenate([x, y]))
    value = float((together[:m].sum() / m - (m + 1) / 2) / n)
    # DeLong's error, and the interval.
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
    return Estimate(
        value=value, low=max(0.0, value - half), high=min(1.0, value + half), std_error=error
    )


def clopper_pearson(
    successes: float, trials: int, *, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return (low, high), the exact interval of a binomial rate (Clopper and Pearson 1934)."""
    tail = (1 - confidence) / 2
    low = 0.0 if successes <= 0 else float(beta.ppf(tail, successes, trials - successes + 1))
    high = (
        1.0 if successes >= trials else float(beta.ppf(1 - tail, successes + 1, trials - successes))
    )
    return low, high


def tpr_at_fpr(
    members: ArrayLike, nonmembers: ArrayLike, max_fpr: float, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the largest true positive rate at a false positive rate of at most max_fpr.

    Both are of one threshold on these data.

    Nothing is interpolated: tied scores are on one side of the threshold together. With fewer than
    1/max_fpr non-members, no false positive is allowed, and the figure is the true positive rate
    without false positives.

    Returns:
        The rate, and Clopper and Pearson's interval over members at the chosen threshold. The
        interval does not include the sampling error of the non-members, which affects the
        threshold.
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    # The largest number of false positives within the rate, by exact comparison.
    allowed = int(np.searchsorted(np.arange(len(y) + 1) / len(y), max_fpr, side="right")) - 1
    detected = len(x)
    if allowed < len(y):
        first_refused = np.partition(y, len(y) - 1 - allowed)[len(y) - 1 - allowed]
        detected = int((x > first_refused).sum())
    low, high = clopper_pearson(detected, len(x), confidence=confidence)
    return Estimate(value=detected / len(x), low=low, high=high)


def best_threshold(members: ArrayLike, nonmembers: ArrayLike) -> tuple[float, float]:
    """Return the score of these data that separates members from non-members best as a threshold.

    Returns:
        The threshold and its balanced accuracy here. Of equally good thresholds, the first in the
        order of the data is returned, members before non-members, as in Song and Mittal's code. The
        accuracy is computed as in that code, so that rounding breaks ties in the same way.

    Source: Song and Mittal 2021, github.com/inspire-group/membership-inference-evaluation,
    `_thre_setting`.
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    candidates = np.concatenate([x, y])
    # For each candidate, the share of members at or above it, and of non-members below it.
    caught = (len(x) - np.searchsorted(np.sort(x), candidates, side="left")) / len(x)
    cleared = np.searchsorted(np.sort(y), candidates, side="left") / len(y)
    accuracies = 0.5 * (caught + cleared)
    best = int(accuracies.argmax())
    return float(candidates[best]), float(accuracies[best])


def accuracy(caught: ArrayLike, cleared: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Return the balanced accuracy of decisions that were made without these data.

    Args:
        caught: [M] bool, whether each member was called a member.
        cleared: [N] bool, whether each non-member was called a non-member.

    Returns:
        Half the sum of the two rates, and the interval that combines their Clopper and Pearson
        intervals by squaring and adding (Newcombe 1998; Zou and Donner 2008).
    """
    # Newcombe's square-and-add of two exact intervals.
    right = [np.asarray(caught, np.bool_), np.asarray(cleared, np.bool_)]
    rates = [float(r.mean()) for r in right]
    limits = [clopper_pearson(int(r.sum()), len(r), confidence=confidence) for r in right]
    value = 0.5 * (rates[0] + rates[1])
    below = 0.5 * math.hypot(*(rate - low for rate, (low, _) in zip(rates, limits, strict=True)))
    above = 0.5 * math.hypot(*(high - rate for rate, (_, high) in zip(rates, limits, strict=True)))
    return Estimate(value=value, low=max(0.0, value - below), high=min(1.0, value + above))


def accuracy_at(members: ArrayLike, nonmembers: ArrayLike, threshold: float) -> Estimate:
    """Return the balanced accuracy at a threshold that comes from other data."""
    return accuracy(np.asarray(members) >= threshold, np.asarray(nonmembers) < threshold)


def split_accuracy(members: ArrayLike, nonmembers: ArrayLike) -> Estimate:
    """Return the balanced accuracy of thresholds from one half of the scores, on the other.

    Both halves take both roles.

    It is the accuracy of an attacker who knows the members of one half. If nothing leaks, it is 1/2
    on average. The halves are every second score, so data with an order must be shuffled first.

    Returns:
        The accuracy with the interval of `accuracy`, and its standard error as if the thresholds
        were given.

    Source: Kaplan et al. 2024, section 2.2.2 and appendix E (half of the members are known to the
    attacker).
    """
    x, y = scores_of(members, "members"), scores_of(nonmembers, "nonmembers")
    if min(len(x), len(y)) < 2:
        raise ValueError(
            "members and nonmembers must be two each to choose a threshold and try it, got "
            f"{len(x)} and {len(y)}. Use more data."
        )
    caught, cleared = np.zeros(len(x), np.bool_), np.zeros(len(y), np.bool_)
    # Each half's threshold decides on the other half.
    for half in range(2):
        threshold, _ = best_threshold(x[half::2], y[half::2])
        caught[1 - half :: 2] = x[1 - half :: 2] >= threshold
        cleared[1 - half :: 2] = y[1 - half :: 2] < threshold
    error = 0.5 * math.hypot(caught.std() / math.sqrt(len(x)), cleared.std() / math.sqrt(len(y)))
    return replace(accuracy(caught, cleared), std_error=error)


def best_accuracy(
    members: ArrayLike, nonmembers: ArrayLike, *, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the balanced accuracy at the best threshold on these data.

    It is above 1/2 even if nothing leaks.

    Returns:
        The accuracy, and an interval for the accuracy of the distributions' own best threshold,
        never below 1/2. The interval holds for all thresholds at once (Dvoretzky, Kiefer and
        Wolfowitz's inequality with Massart's constant 1990, half of the error probability for each
        distribution). If members score lower than non-members, the threshold chosen here does worse
        than the interval on fresh data.
    """
    # The Dvoretzky-Kiefer-Wolfowitz band holds for all thresholds at once, so also for the chosen
    # one.
    value = best_threshold(members, nonmembers)[1]
    counts = (np.size(members), np.size(nonmembers))
    half = 0.5 * sum(math.sqrt(math.log(4 / (1 - confidence)) / (2 * count)) for count in counts)
    return Estimate(value=value, low=max(0.5, value - half), high=min(1.0, value + half))


def curve_figures(members: ArrayLike, nonmembers: ArrayLike) -> dict[str, object]:
    """Return the figures that need no threshold, as data for JSON, each with its interval.

    They are auc with its standard error, and the true positive rates at 1 % and 0.1 % false
    positives. A rate that corresponds to less than one non-member cannot be measured. At 0.1 %, the
    figure is then null, with the reason. At 1 %, the rate that attacks are compared by, it is the
    figure at no false positive, and `reason` says so.
    """
    area = auc(members, nonmembers)
    document: dict[str, object] = {**area.document("auc"), "auc_std_error": area.std_error}
    reasons = []
    count = np.size(nonmembers)
    # A rate below one non-member would be decided by chance alone.
    for name, rate in RATES.items():
        figure = tpr_at_fpr(members, nonmembers, rate).document(f"tpr_at_{name}_fpr")
        if count * rate < 1 and name == "01pct":
            figure = dict.fromkeys(figure)
            reasons.append(f"tpr_at_01pct_fpr needs 1,000 non-members, got {count}")
        elif count * rate < 1:
            reasons.append(
                f"tpr_at_1pct_fpr is at no false positive: 1 % needs 100 non-members, got {count}"
            )
        document |= figure
    return document | ({"reason": "; ".join(reasons)} if reasons else {})
