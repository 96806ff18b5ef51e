"""LiRA and RMIA: a model's loss of an example against models trained with and without it.

All functions take arrays with a row per example and a column per shadow model. The probability p
that a model gives an example is exp(-loss), where loss is the example's mean loss per target token.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from raydp.extensions.membership.metrics import Scores

Matrix = NDArray[np.float64]
Variance = Literal["per_example", "fixed"]
SMALLEST_STD = 1e-30
"""Value added to a standard deviation, as in the reference code: equal shadows have none."""


def logit_of_loss(loss: Matrix) -> Matrix:
    """Return log(p / (1 - p)) at p = exp(-loss), about normal (Carlini et al. 2022, IV-C)."""
    return -loss - np.log(-np.expm1(-np.maximum(loss, 1e-12)))


def lira(
    target: Scores,
    shadows: Matrix,
    included: NDArray[np.bool_],
    *,
    online: bool = True,
    variance: Variance = "per_example",
) -> Scores:
    """Score examples by the likelihood-ratio attack.

    Args:
        target: [N] logits of the target model.
        shadows: [N, S] logits of the shadow models.
        included: [N, S] whether the example was in the shadow's training data.
        online: whether to compare with the models that saw the example and with those that did not.
            Otherwise compare with the latter alone.
        variance: "per_example" for each example's own variance, or "fixed" for one variance for
            all. "fixed" is better with fewer than about 64 shadows (section VI-B). It is the
            variance of the deviations from the examples' means. If each example has only one model,
            it is the variance of all logits, as in the released code.

    Returns:
        [N] scores. Online: log N(target; in) - log N(target; out) (Algorithm 1). Offline: log Phi
        of the standardised target (section IV-D), which is the paper's one-sided test, not the
        two-sided density of its released code. As in that code, means are medians.

    Raises:
        ValueError: an example has no model to compare with.

    Source: Carlini et al. 2022; github.com/tensorflow/privacy, research/mi_lira_2021/plot.py.
    """
    # Offline: one-sided test against the models without the example.
    outside = _fit(shadows, ~included, variance, "without")
    if not online:
        return np.asarray(norm.logcdf((target - outside[0]) / outside[1]), np.float64)
    inside = _fit(shadows, included, variance, "with")
    return np.asarray(norm.logpdf(target, *inside) - norm.logpdf(target, *outside), np.float64)


def _fit(
    shadows: Matrix, used: NDArray[np.bool_], variance: Variance, which: str
) -> tuple[Scores, Scores]:
    """Return median and standard deviation of each row's used entries."""
    _require_a_model(used, which)
    # NaN marks entries that are not used, so that all rows are fitted at once.
    seen = np.where(used, shadows, np.nan)
    middle = np.nanmedian(seen, axis=1)
    if variance == "per_example":
        return middle, np.nanstd(seen, axis=1) + SMALLEST_STD
    freedom = used.sum() - len(used)  # one mean per example is estimated from the data
    if freedom:
        spread = np.sqrt(np.nansum((seen - np.nanmean(seen, axis=1, keepdims=True)) ** 2) / freedom)
    else:
        spread = np.nanstd(seen)
    return middle, np.full(len(middle), spread + SMALLEST_STD)


def rmia(
    target: Scores,
    average: Scores,
    population_target: Scores,
    population_average: Scores,
    *,
    gamma: float = 1.0,
) -> Scores:
    """Score examples by the robust attack: how often the gain exceeds a random other example's.

    Args:
        target: [N] probabilities of the target model.
        average: [N] average probabilities without knowledge of membership, see
            `average_probability`.
        population_target, population_average: [Z] both probabilities for examples that no model was
            trained on.
        gamma: factor by which an example's gain must exceed the other's.

    Returns:
        [N] the share of the population with (target / average) / (population_target /
        population_average) > gamma.

    Source: Zarifzadeh et al. 2024, eq. (2) and Algorithm 1; strict as in
    github.com/privacytrustlab/ml_privacy_meter.
    """
    # In logarithms. The strict comparison is a search from the left among the sorted others.
    gain = np.log(target) - np.log(average)
    others = np.sort(np.log(population_target) - np.log(population_average) + np.log(gamma))
    return np.searchsorted(others, gain, side="left") / len(others)


def average_probability(
    shadows: Matrix, included: NDArray[np.bool_], *, online: bool = True, offline_a: float = 0.3
) -> Scores:
    """Return RMIA's p(x): the mean probability over models trained with and without the example.

    Both groups have the same weight.

    Args:
        shadows: [N, S] probabilities of the shadow models.
        included: [N, S] as for lira.
        online: whether to take the mean of the two groups' means. Otherwise only the models without
            the example are used. From their mean p_out, the mean over both groups is estimated as
            ((1 + a) p_out + 1 - a) / 2.
        offline_a: a in that estimate. With 1, the estimate is p_out.

    Source: Zarifzadeh et al. 2024, section 3 and appendix B.2.2.
    """
    without = _mean(shadows, ~included, "without")
    if online:
        return (_mean(shadows, included, "with") + without) / 2
    return ((1 + offline_a) * without + 1 - offline_a) / 2


def reference_gain(
    target_loss: Scores, shadow_losses: Matrix, included: NDArray[np.bool_]
) -> Scores:
    """Return the mean loss of the shadows without the example minus the target's loss, [N].

    Source: Watson et al. 2022.
    """
    return _mean(shadow_losses, ~included, "without") - target_loss


def _mean(values: Matrix, used: NDArray[np.bool_], which: str) -> Scores:
    """Return the mean of each row's used entries."""
    _require_a_model(used, which)
    return np.asarray(np.where(used, values, 0.0).sum(axis=1) / used.sum(axis=1))


def _require_a_model(used: NDArray[np.bool_], which: str) -> None:
    """Raise ValueError if a row has no used entry."""
    if lacking := int((~used.any(axis=1)).sum()):
        raise ValueError(
            f"shadows must have a model {which} each example, got none for {lacking} examples. Use "
            "more shadows, or pairs of complements."
        )
