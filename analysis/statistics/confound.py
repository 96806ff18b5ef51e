"""Score against utility: how much of the score's variance remains after adjusting for utility."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.statistics.heuristics import HEURISTICS, Coded, pair_blocks
from analysis.statistics.noise import SeedNoise
from analysis.statistics.spread import std, unit_of
from analysis.tables.points import configuration_means, configurations
from analysis.tables.thinning import evenly

Array = NDArray[np.float64]

RESAMPLES = 2000
_KNOTS = (0.1, 0.5, 0.9)  # quantiles of a restricted cubic spline with one nonlinear term (Harrell 2015, section 2.4.5)
_MIN_CONFIGURATIONS = 8
_ROUNDING = 1e-12
_SHOWN = 20
_MOST_PAIRED = 5000  # the largest number of configurations paired; more are thinned evenly by loss
_CELLS_AT_ONCE = 1_000_000
_MOST_RESAMPLED = 10_000_000  # the largest number of configurations drawn in all resamples together


def utility_adjusted(points: pd.DataFrame, *, num_resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Compute how much of the score's spread over configurations remains after adjusting for utility.

    A better model usually leaks more, so a spread of the score may only reflect a spread of utility. The mean score is
    regressed on a smooth function of the mean utility loss (a restricted cubic spline with three knots). The residual
    is the score adjusted for utility.

    Args:
        points: a points table.
        num_resamples, seed: settings of the bootstrap over configurations, for "share_interval". With more than 5,000
            configurations, fewer resamples are drawn.

    Returns:
        "configurations"; "score_std"; "adjusted_std": standard deviation of the residuals, with the spline's degrees
        of freedom subtracted, and its 95 % "interval"; "share_remaining": the residuals' variance over the scores'
        variance, and its "share_interval"; "noise_std": the average standard deviation of a mean score due to seeds
        alone (None with a "noise_reason"). If score_std is no larger than noise_std, there is no spread to explain.
        "rows": per configuration the "score", the "expected" score at its utility and their difference "adjusted".
        "pairs": see below. Undefined figures are None with a "reason".

        "pairs" describes configurations whose mean losses differ by at most "tolerance": twice the standard error of
        such a difference over seeds, or 2 % of the losses' range if no configuration has two seeds. It holds "count",
        the difference of their scores ("mean_difference", "largest_difference"), the 20 "widest" pairs, and for each
        heuristic how often it names the configuration with the lower score, among the pairs that satisfy its
        condition. "paired" is the number of configurations that were compared, except for the heuristics: all, or
        5,000 thinned evenly by loss.

    Raises:
        ValueError: as `configuration_means`.
    """
    means = configuration_means(points)
    loss, score = means["utility_loss"].to_numpy(), means["score"].to_numpy()
    result: dict[str, Any] = {"configurations": len(means)}
    noise = SeedNoise.of(means["score_std"].to_numpy(), means["num_seeds"].to_numpy())
    result["noise_std"] = None if noise is None else float(np.sqrt((noise.std_error() ** 2).mean()))
    result["score_std"] = std(score) if len(score) > 1 else None
    undefined: dict[str, Any] = {
        "adjusted_std": None,
        "interval": None,
        "share_remaining": None,
        "share_interval": None,
        "rows": [],
    }
    if len(means) < _MIN_CONFIGURATIONS:
        result |= undefined | {"reason": f"{len(means)} configurations are too few: it takes {_MIN_CONFIGURATIONS}"}
    elif len(np.unique(loss)) <= len(_KNOTS) or np.ptp(score) == 0:
        reason = f"there are no more than {len(_KNOTS)} different losses, or the score is the same everywhere"
        result |= undefined | {"reason": reason}
    else:
        result |= _remaining(means, loss, score, num_resamples, np.random.default_rng(seed))
    if noise is None:
        result["noise_reason"] = "noise_std needs a configuration with two seeds"
    return result | {"pairs": _matched_pairs(means, loss, score)}


def _remaining(
    means: pd.DataFrame, loss: Array, score: Array, num_resamples: int, rng: np.random.Generator
) -> dict[str, object]:
    """Return the spread of the residuals, with intervals over resamples of the configurations."""
    unit = unit_of(score)
    expected, score = _smooth(loss, score), score / unit
    variance, share = _residual_variance(loss, score)
    # Bootstrap the share of the variance that remains.
    drawn = []
    num_resamples = min(num_resamples, _MOST_RESAMPLED // len(loss))
    for _ in range(num_resamples):
        chosen = rng.integers(0, len(loss), len(loss))
        if len(np.unique(loss[chosen])) > len(_KNOTS) and np.ptp(score[chosen]) > 0:
            drawn.append(_residual_variance(loss[chosen], score[chosen])[1])
    intervals: dict[str, object] = {"interval": None, "share_interval": None}
    if len(drawn) >= num_resamples / 2:
        ends = np.quantile(drawn, [0.025, 0.975], axis=0)
        intervals["share_interval"] = ends.tolist()
    # Jackknife the residual standard deviation.
    if (around := _std_interval(loss, score)) is not None:
        intervals["interval"] = [unit * end for end in around]
    if None in intervals.values():  # too few configurations differ in most resamples, or if one is left out
        intervals["reason"] = "too few configurations differ for an interval"
    rows = [
        asdict(c) | {"utility_loss": float(u), "score": float(s), "expected": float(e), "adjusted": float(s - e)}
        for c, u, s, e in zip(configurations(means), loss, score * unit, expected, strict=True)
    ]
    return {
        "adjusted_std": unit * float(np.sqrt(variance)),
        "share_remaining": float(share),
        **intervals,
        "rows": rows,
    }


def _residual_variance(loss: Array, score: Array) -> tuple[float, float]:
    """Return the residual variance and its share of the score's variance, both unbiased for Gaussian errors."""
    terms = _spline(loss).shape[1]
    residuals = score - _smooth(loss, score)
    variance = float((residuals**2).sum() / (len(loss) - terms))
    return variance, variance / float(score.var(ddof=1))


def _std_interval(loss: Array, score: Array) -> list[float] | None:
    """Return the 95 % interval of the residual standard deviation. None if leaving one out leaves no residual.

    The interval is the jackknife on the logarithm, as in `std_interval`, applied to the residual sums of squares of the
    regressions that leave out one configuration. It covers the truth in 95 to 97 of 100 Gaussian samples of 8 to 64. A
    bootstrap of configurations covers it in 60 to 92.

    Source: Miller 1968; Cook and Weisberg 1982, section 2.2 (deletion in linear regression).
    """
    from scipy.stats import t as student

    # Residual sums of squares without each configuration, from the leverages.
    design = _spline(loss)
    size, terms = design.shape
    basis, _ = np.linalg.qr(design)
    residuals, leverage = score - basis @ (basis.T @ score), (basis**2).sum(axis=1)
    total = float((residuals**2).sum())
    without = total - np.divide(residuals**2, 1 - leverage, out=np.full(size, np.inf), where=leverage < 1 - _ROUNDING)
    if total <= 0 or (without <= _ROUNDING * total).any() or size - terms < 2:
        return None
    # Jackknife pseudovalues of the logarithm, and Student's interval of their mean.
    centre = 0.5 * float(np.log(total / (size - terms)))
    pseudo = size * centre - (size - 1) * 0.5 * np.log(without / (size - 1 - terms))
    margin = float(student.ppf(0.975, size - 1) * pseudo.std(ddof=1) / np.sqrt(size))
    return [float(np.exp(centre - margin)), float(np.exp(centre + margin))]


def _smooth(loss: Array, score: Array) -> Array:
    """Return the fitted scores, shape [m]."""
    design = _spline(loss)
    fitted: Array = design @ np.linalg.lstsq(design, score, rcond=None)[0]
    return fitted


def _spline(x: Array) -> Array:
    """Return the columns 1, x and a cubic between the knots that is linear beyond them. Shape [m, 3]."""
    low, middle, high = np.quantile(x, _KNOTS)
    scale = (high - low) or 1.0
    x, low, middle, high = (x - low) / scale, 0.0, (middle - low) / scale, (high - low) / scale

    def cubic(knot: float) -> Array:
        return np.maximum(x - knot, 0) ** 3

    if not low < middle < high:
        return np.column_stack([np.ones_like(x), x])
    bend = cubic(low) - cubic(middle) * (high - low) / (high - middle) + cubic(high) * (middle - low) / (high - middle)
    return np.column_stack([np.ones_like(x), x, bend])


def _matched_pairs(means: pd.DataFrame, loss: Array, score: Array) -> dict[str, Any]:
    """Return the pairs of equal utility, up to the utility's error."""
    # The tolerance within which two losses count as equal.
    noise = SeedNoise.of(means["utility_loss_std"].to_numpy(), means["num_seeds"].to_numpy())
    tolerance = 0.02 * float(np.ptp(loss))
    if noise is not None:
        tolerance = 2 * float(np.sqrt(2 * (noise.std_error() ** 2).mean()))
    # Sort by loss, and find the last configuration within the tolerance of each.
    order = np.argsort(loss, kind="stable")[evenly(len(loss), _MOST_PAIRED)]
    ends = np.searchsorted(loss[order], loss[order] + tolerance, side="right")
    count, total = 0, 0.0
    widest: list[tuple[float, int, int]] = []
    start = 0
    # Go through the pairs in blocks, keeping the sums and the widest pairs.
    while start < len(order):
        stop = start + max(1, _CELLS_AT_ONCE // max(1, int(ends[start] - start)))
        rows, columns = np.arange(start, min(stop, len(order))), np.arange(start, ends[min(stop, len(order)) - 1])
        near = (columns > rows[:, None]) & (columns < ends[rows][:, None])
        i, j = np.nonzero(near)
        i, j = order[rows[i]], order[columns[j]]
        apart = np.abs(score[i] - score[j])
        count, total = count + len(apart), total + float(apart.sum())
        least = np.partition(apart, -_SHOWN)[-_SHOWN] if len(apart) > _SHOWN else -np.inf
        top = np.flatnonzero(apart >= least)
        top = top[np.argsort(-apart[top], kind="stable")][:_SHOWN]
        widest = sorted(
            [*widest, *zip(apart[top].tolist(), i[top].tolist(), j[top].tolist(), strict=True)], reverse=True
        )
        widest, start = widest[:_SHOWN], stop
    listed = configurations(means)
    return {
        "tolerance": tolerance,
        "paired": len(order),
        "count": count,
        "mean_difference": total / count if count else None,
        "largest_difference": widest[0][0] if widest else None,
        **({} if count else {"reason": "no two configurations have equal utility"}),
        "heuristics": _accuracy_at_equal_utility(means, loss, score, tolerance),
        "widest": [_pair(listed, loss, score, i, j) for _, i, j in widest],
    }


def _accuracy_at_equal_utility(means: pd.DataFrame, loss: Array, score: Array, tolerance: float) -> dict[str, Any]:
    """Return how often each heuristic is right among pairs of equal utility."""
    coded = Coded.of(means)
    accuracy: dict[str, dict[str, Any]] = {}
    for name in HEURISTICS:
        pairs = correct = 0
        for rows, columns, holds in pair_blocks(coded, name):
            near = holds & (np.abs(loss[rows, None] - loss[columns]) <= tolerance)
            pairs += int(np.count_nonzero(near))
            correct += int(np.count_nonzero(near & (score[rows, None] < score[columns])))
        accuracy[name] = {"correct": correct, "pairs": pairs, "accuracy": correct / pairs if pairs else None}
        if not pairs:
            accuracy[name]["reason"] = "no such pair satisfies its condition"
    return accuracy


def _pair(listed: list[Any], loss: Array, score: Array, i: int, j: int) -> dict[str, Any]:
    """Return the record of two configurations, the one with the lower score first."""
    lower, higher = (i, j) if score[i] <= score[j] else (j, i)
    return {
        side: asdict(listed[k]) | {"utility_loss": float(loss[k]), "score": float(score[k])}
        for side, k in (("lower", lower), ("higher", higher))
    }
