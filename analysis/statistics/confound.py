"""Score against utility: what is left of the score's variance once utility is taken into account."""

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
_KNOTS = (0.1, 0.5, 0.9)  # of a restricted cubic spline with one term beside the line (Harrell 2015, section 2.4.5)
_MIN_CONFIGURATIONS = 8
_ROUNDING = 1e-12
_SHOWN = 20
_MOST_PAIRED = 5000  # configurations; of more, so many evenly over the losses
_CELLS_AT_ONCE = 1_000_000
_MOST_RESAMPLED = 10_000_000  # configurations in all resamples together


def utility_adjusted(points: pd.DataFrame, *, num_resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """How much of the score's spread over configurations a model's utility does not explain.

    A better model usually leaks more, so a spread of the score may only be a spread of utility. The mean score is
    regressed on a smooth function of the mean utility loss (a restricted cubic spline with three knots); what is left
    is the score adjusted for utility.

    Args:
        points: a points table.
        num_resamples, seed: of the bootstrap over configurations, for "share_interval"; fewer resamples with more than
            5,000 of them.

    Returns:
        "configurations"; "score_std"; "adjusted_std": of the residuals, with the degrees of freedom that the spline
        takes left out, and its 95 % "interval"; "share_remaining": their variance over that of the scores, and
        "share_interval"; "noise_std": what seeds alone give the mean scores on average: a spread that is no larger has
        nothing to explain (None with a "noise_reason");
        "rows": per configuration the "score", the "expected" score at its utility and their
        difference "adjusted"; "pairs": see below. Undefined figures are None with a "reason".

        "pairs": configurations whose mean losses differ by at most "tolerance" (twice the standard error of such a
        difference over seeds; without two seeds 2 % of the losses' range): "count", how far their scores are apart
        ("mean_difference", "largest_difference"), the 20 "widest", and for each heuristic how often it names the one
        with the lower score among the pairs that satisfy its condition. "paired" is how many configurations were
        looked at for all but the heuristics: all, or of more than 5,000 so many evenly over the losses.

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
    """The spread of the residuals, with intervals over resamples of the configurations."""
    unit = unit_of(score)
    expected, score = _smooth(loss, score), score / unit
    variance, share = _residual_variance(loss, score)
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
    if (around := _std_interval(loss, score)) is not None:
        intervals["interval"] = [unit * end for end in around]
    if None in intervals.values():  # in most resamples, or without one of them, too few configurations differ
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
    """Variance of the residuals and its share of the score's, both without bias for Gaussian errors."""
    terms = _spline(loss).shape[1]
    residuals = score - _smooth(loss, score)
    variance = float((residuals**2).sum() / (len(loss) - terms))
    return variance, variance / float(score.var(ddof=1))


def _std_interval(loss: Array, score: Array) -> list[float] | None:
    """95 % interval of the residual standard deviation; None where leaving one out leaves no residual.

    The jackknife on the logarithm, as `std_interval` has it, with the sums of squares that the regression without each
    configuration leaves. It holds the truth in 95 to 97 of 100 Gaussian samples of 8 to 64, where a bootstrap of
    configurations does in 60 to 92.

    Source: Miller 1968; Cook and Weisberg 1982, section 2.2 (deletion in linear regression).
    """
    from scipy.stats import t as student

    design = _spline(loss)
    size, terms = design.shape
    basis, _ = np.linalg.qr(design)
    residuals, leverage = score - basis @ (basis.T @ score), (basis**2).sum(axis=1)
    total = float((residuals**2).sum())
    without = total - np.divide(residuals**2, 1 - leverage, out=np.full(size, np.inf), where=leverage < 1 - _ROUNDING)
    if total <= 0 or (without <= _ROUNDING * total).any() or size - terms < 2:
        return None
    centre = 0.5 * float(np.log(total / (size - terms)))
    pseudo = size * centre - (size - 1) * 0.5 * np.log(without / (size - 1 - terms))
    margin = float(student.ppf(0.975, size - 1) * pseudo.std(ddof=1) / np.sqrt(size))
    return [float(np.exp(centre - margin)), float(np.exp(centre + margin))]


def _smooth(loss: Array, score: Array) -> Array:
    """[m] the fitted scores."""
    design = _spline(loss)
    fitted: Array = design @ np.linalg.lstsq(design, score, rcond=None)[0]
    return fitted


def _spline(x: Array) -> Array:
    """[m, 3] 1, x, and a cubic between the knots that is a line beyond them."""
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
    """Pairs of equal utility, as far as it is known."""
    noise = SeedNoise.of(means["utility_loss_std"].to_numpy(), means["num_seeds"].to_numpy())
    tolerance = 0.02 * float(np.ptp(loss))
    if noise is not None:
        tolerance = 2 * float(np.sqrt(2 * (noise.std_error() ** 2).mean()))
    order = np.argsort(loss, kind="stable")[evenly(len(loss), _MOST_PAIRED)]
    ends = np.searchsorted(loss[order], loss[order] + tolerance, side="right")
    count, total = 0, 0.0
    widest: list[tuple[float, int, int]] = []
    start = 0
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
    """How often each heuristic is right among pairs of equal utility."""
    coded = Coded.of(means)
    found: dict[str, dict[str, Any]] = {}
    for name in HEURISTICS:
        pairs = correct = 0
        for rows, columns, holds in pair_blocks(coded, name):
            near = holds & (np.abs(loss[rows, None] - loss[columns]) <= tolerance)
            pairs += int(np.count_nonzero(near))
            correct += int(np.count_nonzero(near & (score[rows, None] < score[columns])))
        found[name] = {"correct": correct, "pairs": pairs, "accuracy": correct / pairs if pairs else None}
        if not pairs:
            found[name]["reason"] = "no such pair satisfies its condition"
    return found


def _pair(listed: list[Any], loss: Array, score: Array, i: int, j: int) -> dict[str, Any]:
    """Two configurations, the one with the lower score first."""
    lower, higher = (i, j) if score[i] <= score[j] else (j, i)
    return {
        side: asdict(listed[k]) | {"utility_loss": float(loss[k]), "score": float(score[k])}
        for side, k in (("lower", lower), ("higher", higher))
    }
