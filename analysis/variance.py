"""Empirical privacy variance: what hyperparameters do to the score against what seeds do (Hu et al. 2025, Table 8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analysis.points import configuration_means


def score_variance(points: pd.DataFrame) -> dict[str, Any]:
    """Spread of the scores under one (ε, δ), over configurations and over seeds. Standard deviations have ddof = 1.

    Args:
        points: a points table.

    Returns:
        "configurations": how many; "score_std": standard deviation over configurations of their means; "seed_std": mean
        over the "seed_configurations" (those with several seeds) of the standard deviation over seeds; "score_min",
        "score_max": of the means; "utility_correlation": {"pearson", "spearman"} between mean utility_loss and mean
        score. An undefined figure is None, with a "reason" beside it.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, App. C.3, Table 8.
    """
    means = configuration_means(points)
    score = means["score"]
    seeds = means["score_std"].dropna()
    result: dict[str, Any] = {
        "configurations": len(means),
        "seed_configurations": len(seeds),
        "score_std": float(score.std(ddof=1)) if len(means) > 1 else None,
        "seed_std": float(seeds.mean()) if len(seeds) else None,
        "score_min": float(score.min()),
        "score_max": float(score.max()),
        "utility_correlation": _correlation(means["utility_loss"], score),
    }
    reasons = []
    if result["score_std"] is None:
        reasons.append("score_std needs at least 2 configurations")
    if result["seed_std"] is None:
        reasons.append("seed_std needs a configuration with at least 2 seeds")
    if reasons:
        result["reason"] = "; ".join(reasons)
    return result


def _correlation(utility_loss: pd.Series, score: pd.Series) -> dict[str, Any]:
    """Pearson's r and Spearman's ρ (Pearson's r of average ranks)."""
    constant = [str(figure.name) for figure in (utility_loss, score) if figure.nunique() < 2]
    if constant:
        reason = f"{' and '.join(constant)} is the same in every configuration"
        return {"pearson": None, "spearman": None, "reason": reason}
    return {
        "pearson": float(np.corrcoef(utility_loss, score)[0, 1]),
        "spearman": float(np.corrcoef(utility_loss.rank(), score.rank())[0, 1]),
    }
