"""Privacy risk of selection rules over all utility thresholds (Hu et al. 2025, §4.3 and App. D.3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.points import configuration_means
from analysis.rules import RULES, Layout, choose

_CELLS_AT_ONCE = 4_000_000  # pool members evaluated together: 16 MB as float32


def privacy_risk(
    points: pd.DataFrame, *, layout: Literal["mean", "resample"] = "mean", num_layouts: int = 5000, seed: int = 0
) -> dict[str, Any]:
    """How much more the selected configuration leaks than the best one that the same threshold allows.

    At every configuration's utility u, each rule selects from P_u = {utility_loss <= u}, u included. The absolute risk
    is score(selected) - score(oracle), the relative risk divides it by score(oracle); both are averaged over u, one
    threshold per configuration.

    Args:
        points: a points table.
        layout: "mean" places each configuration at its means over seeds. "resample" draws utility and score of each
            configuration from independent Gaussians with the mean and the standard deviation (ddof = 1) of its seeds,
            num_layouts times, and averages over the draws too.
        num_layouts: draws of "resample".
        seed: of the draws.

    Returns:
        {"thresholds": m, "layout", "rules": {rule: {"relative", "absolute"}}}; "resample" adds "layouts" and "seed".
        relative is None, with "reason", where an oracle score is 0 or below.

    Raises:
        ValueError: as `configuration_means`; an unknown layout; "resample" with a configuration that has one seed.

    Source: Hu et al. 2025, §4.3; App. D.3 for the absolute risk and the resampled layouts. That P_u includes its
    threshold and that utility is resampled as well as the score are conventions of ours.
    """
    means = configuration_means(points)
    if layout == "mean":
        utility, score = means["utility_loss"].to_numpy()[None], means["score"].to_numpy()[None]
    elif layout == "resample":
        utility, score = _resampled(means, num_layouts, seed)
    else:
        raise ValueError(f"layout must be 'mean' or 'resample', got {layout!r}. Choose one of them.")
    excess, oracle = _excess_scores(means, utility, score)
    undefined = int((oracle <= 0).sum())
    result: dict[str, Any] = {"thresholds": len(means), "layout": layout, "rules": {}}
    if layout == "resample":
        result |= {"layouts": num_layouts, "seed": seed}
    for rule, difference in excess.items():
        figures: dict[str, Any] = {"relative": None, "absolute": float(difference.mean())}
        if undefined:
            figures["reason"] = f"the oracle's score is 0 or below at {undefined} of {oracle.size} thresholds"
        else:
            figures["relative"] = float((difference / oracle).mean())
        result["rules"][rule] = figures
    return result


def _excess_scores(
    means: pd.DataFrame, utility: NDArray[np.float64], score: NDArray[np.float64]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """rule -> [layouts, m] score above the oracle's, and the oracle's [layouts, m], at every threshold."""
    preferred = Layout.of(means).preferred
    excess = {rule: np.empty_like(score) for rule in RULES}
    oracle = np.empty_like(score)
    for part in _chunks(score.shape):
        losses, scores = utility[part], score[part]
        pools = losses[:, None, :] <= losses[:, :, None]  # [layouts, threshold, configuration]
        drawn = Layout(preferred=preferred, utility_loss=losses[:, None, :], score=scores[:, None, :])
        oracle[part] = np.where(pools, scores[:, None, :], np.inf).min(axis=-1)
        for rule, above in excess.items():
            above[part] = np.take_along_axis(scores, choose(rule, drawn, pools), axis=1) - oracle[part]
    return excess, oracle


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of layouts whose pools fit the memory that is set aside."""
    layouts, size = shape
    step = max(1, _CELLS_AT_ONCE // size**2)
    return (slice(start, start + step) for start in range(0, layouts, step))


def _resampled(means: pd.DataFrame, num_layouts: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[num_layouts, m] utility and score, drawn around the means."""
    if num_layouts < 1:
        raise ValueError(f"num_layouts must be >= 1, got {num_layouts}. The paper draws 5000.")
    single = int((means["num_seeds"] < 2).sum())
    if single:
        raise ValueError(
            f"layout 'resample' must have at least 2 seeds per configuration, got {single} of {len(means)} "
            "configurations with one. Add seeds, or use layout 'mean'."
        )
    generator = np.random.default_rng(seed)
    drawn = [
        generator.normal(means[column], means[f"{column}_std"], size=(num_layouts, len(means)))
        for column in ("utility_loss", "score")
    ]
    return drawn[0], drawn[1]
