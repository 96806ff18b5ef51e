"""Empirical privacy variance over hyperparameters and over seeds (Hu et al. 2025, Table 8)."""

from __future__ import annotations

from typing import TypedDict, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import fdtrc

from raydp.analysis.statistics.results import Reason, because, unknown_figures
from raydp.analysis.statistics.spread import std, std_interval, t_quantile, unit_of
from raydp.analysis.tables.points import configuration_means


class FTest(TypedDict):
    """A one-way analysis of variance."""

    f: float
    p: float


class Components(TypedDict):
    """The components of one run's variance."""

    total_std: float | None
    configuration_std: float | None
    configuration_share: float | None
    f_test: FTest | None


class Correlation(Reason):
    """Correlation of mean utility loss and mean score."""

    pearson: float | None
    spearman: float | None


class Variance(Components, Reason):
    """The spread of the scores over configurations and over seeds (see `score_variance`)."""

    configurations: int
    seed_configurations: int
    score_std: float | None
    score_std_interval: list[float] | None
    seed_std: float | None
    seed_std_interval: list[float] | None
    score_min: float
    score_max: float
    utility_correlation: Correlation


def score_variance(points: pd.DataFrame) -> Variance:
    """Return the spread of the scores under one (ε, δ), over configurations and seeds (ddof = 1).

    Args:
        points: a points table.

    Returns:
        "configurations": their number. "score_std": standard deviation over configurations of their
        means. "seed_std": mean over the "seed_configurations" (configurations with several seeds)
        of the standard deviation over seeds. Both have a 95 % "..._interval" (see `std_interval`).
        "score_min", "score_max": extremes of the means.

        "total_std": standard deviation over all rows, regardless of configuration.
        "configuration_std": score_std without the contribution of seeds to a mean, sqrt(max(0,
        score_std² - mean of s² / number of seeds)). "configuration_share": the part of one run's
        variance that its hyperparameters decide, which is configuration_std² / (configuration_std²
        + mean of s²). "f_test": {"f", "p"} of the hypothesis that the hyperparameters have no
        effect, by one-way analysis of variance.

        "utility_correlation": {"pearson", "spearman"} between mean utility_loss and mean score.
        Undefined figures are None, with a "reason".

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, App. C.3, Table 8; Searle, Casella and McCulloch 1992, section 3.6
    (components).
    """
    means = configuration_means(points)
    score = means["score"]
    # A configuration with one seed has no standard deviation.
    seeds = means["score_std"].dropna()
    score_std = std(score.to_numpy()) if len(means) > 1 else None
    score_std_interval = std_interval(score.to_numpy())
    seed_std = float(seeds.mean()) if len(seeds) else None
    seed_std_interval = _mean_interval(seeds.to_numpy())
    components = _components(means)
    parts = components["configuration_std"]
    # What each figure needs: the reason if it is undefined.
    needs: list[tuple[object, str]] = [
        (score_std, "score_std needs at least 2 configurations"),
        (seed_std, "seed_std needs a configuration with at least 2 seeds"),
        (score_std_interval, "an interval needs at least 4 configurations, whose scores differ"),
        (seed_std_interval, "seed_std_interval needs 2 configurations with at least 2 seeds"),
        (parts, "the parts need 2 configurations, one of them with at least 2 seeds"),
        (parts is None or components["f_test"], "the F test needs seeds that differ"),
    ]
    return {
        "configurations": len(means),
        "seed_configurations": len(seeds),
        "score_std": score_std,
        "score_std_interval": score_std_interval,
        "seed_std": seed_std,
        "seed_std_interval": seed_std_interval,
        "score_min": float(score.min()),
        "score_max": float(score.max()),
        **components,
        "utility_correlation": _correlation(means["utility_loss"], score),
        **because(*(reason for figure, reason in needs if figure is None)),
    }


def _components(means: pd.DataFrame) -> Components:
    """Return the components of one run's variance: total, configurations, seeds."""
    result = cast("Components", unknown_figures(Components))
    # A configuration with one seed has no degree of freedom, so that its 0 counts for nothing.
    seeds, size = (
        means["score_std"].fillna(0.0).to_numpy(),
        means["num_seeds"].to_numpy(dtype=np.float64),
    )
    score = means["score"].to_numpy()
    unit = unit_of(np.concatenate([score - score.min(), seeds]))
    score, seeds = score / unit, seeds / unit
    runs, count = float(size.sum()), len(means)
    # Sums of squares within and between the configurations.
    within = float(((size - 1) * seeds**2).sum())
    between = float((size * (score - (size * score).sum() / runs) ** 2).sum())
    if runs < 2:
        return result
    result["total_std"] = unit * float(np.sqrt((within + between) / (runs - 1)))
    if count < 2 or runs <= count:
        return result
    # Variance components.
    of_seeds = within / (runs - count)
    # A mean over k seeds holds a k-th of the seeds' variance: subtract it (Searle et al., 3.6).
    of_configurations = max(0.0, float(score.var(ddof=1)) - of_seeds * float((1 / size).mean()))
    result["configuration_std"] = unit * float(np.sqrt(of_configurations))
    if of_configurations + of_seeds > 0:
        result["configuration_share"] = of_configurations / (of_configurations + of_seeds)
    if of_seeds > 0:
        f = between / (count - 1) / of_seeds
        result["f_test"] = {"f": f, "p": float(fdtrc(count - 1, runs - count, f))}
    return result


def _mean_interval(values: NDArray[np.float64]) -> list[float] | None:
    """Return the 95 % interval of a mean of standard deviations, by Student's t, from 0 up."""
    if len(values) < 2:
        return None
    margin = float(t_quantile(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values)))
    return [max(0.0, float(values.mean()) - margin), float(values.mean()) + margin]


def _correlation(utility_loss: pd.Series, score: pd.Series) -> Correlation:
    """Return Pearson's r and Spearman's ρ (Pearson's r of average ranks)."""
    constant = [str(figure.name) for figure in (utility_loss, score) if figure.nunique() < 2]
    if constant:
        reason = f"{' and '.join(constant)} is the same in every configuration"
        return {"pearson": None, "spearman": None, "reason": reason}
    # In units in which no product overflows. Ranks need none.
    loss_unit, unit = unit_of(utility_loss.to_numpy()), unit_of(score.to_numpy())
    return {
        "pearson": float(np.corrcoef(utility_loss / loss_unit, score / unit)[0, 1]),
        "spearman": float(np.corrcoef(utility_loss.rank(), score.rank())[0, 1]),
    }
