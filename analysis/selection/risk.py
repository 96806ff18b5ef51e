"""Privacy risk of selection rules over all utility thresholds (Hu et al. 2025, §4.3, App. D.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NotRequired, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.selection.rules import Layout, rule_names
from raydp.analysis.selection.thresholds import select_at_thresholds
from raydp.analysis.statistics.results import Reason
from raydp.analysis.tables.points import configuration_means

LayoutKind = Literal["mean", "resample"]


class RuleRisk(Reason):
    """The risk of one rule."""

    relative: float | None
    absolute: float


class Risk(TypedDict):
    """The risk of every rule. Only resampled layouts have a number and a seed."""

    thresholds: int
    layout: LayoutKind
    rules: dict[str, RuleRisk]
    layouts: NotRequired[int]
    seed: NotRequired[int]


def privacy_risk(
    points: pd.DataFrame, *, layout: LayoutKind = "mean", num_layouts: int = 5000, seed: int = 0
) -> Risk:
    """Compute how much more each rule's selection leaks than the best that its threshold allows.

    At every configuration's utility u, each rule selects from P_u = {utility_loss <= u}, u
    included. The absolute risk is score(selected) - score(oracle). The relative risk is the
    absolute risk divided by score(oracle). Both are averaged over u, one threshold per
    configuration.

    Args:
        points: a points table.
        layout: "mean" places each configuration at its means over seeds. "resample" draws utility
            and score of each configuration from independent Gaussians with the mean and the
            standard deviation (ddof = 1) of its seeds, num_layouts times, and averages over the
            draws too.
        num_layouts: draws of "resample".
        seed: seed of the draws.

    Returns:
        {"thresholds": m, "layout", "rules": {rule: {"relative", "absolute"}}}; "resample" adds
        "layouts" and "seed". relative is None, with "reason", if an oracle score is 0 or below.

    Raises:
        ValueError: as `configuration_means`; an unknown layout; "resample" with a configuration
            that has one seed.

    The rule "informed" is evaluated without its leakage check, which needs the values by secret,
    without its utility check, because P_u is defined by measured losses, and without its choice
    between equivalent scores, because a drawn layout has no errors. It knows the measured scores
    alone, so its expected scores are the same in every drawn layout.

    Source: Hu et al. 2025, §4.3; App. D.3 for the absolute risk and the resampled layouts. Two
    conventions are ours: P_u includes its threshold, and utility is resampled as well as the score.
    """
    means = configuration_means(points)
    # Place the configurations: one layout, or many drawn ones.
    if layout == "mean":
        utility, score = means["utility_loss"].to_numpy()[None], means["score"].to_numpy()[None]
    elif layout == "resample":
        utility, score = _resampled(means, num_layouts, seed)
    else:
        raise ValueError(
            f"layout must be 'mean' or 'resample', got {layout!r}. Choose one of them."
        )
    layout_of_all = replace(Layout.of(means), utility_loss=utility, score=score)
    # Evaluate each rule against the oracle at every threshold.
    oracle = _scores_along("oracle", layout_of_all)
    rules = {rule: _risk(rule, layout_of_all, oracle) for rule in rule_names()}
    result: Risk = {"thresholds": len(means), "layout": layout, "rules": rules}
    if layout == "resample":
        result["layouts"], result["seed"] = num_layouts, seed
    return result


def _risk(rule: str, layout: Layout, oracle: NDArray[np.float64]) -> RuleRisk:
    """Return a rule's risk against the oracle's scores at every threshold, [layouts, m]."""
    difference = _scores_along(rule, layout) - oracle
    absolute = float(difference.mean())
    # The ratio is undefined there, and leaving those thresholds out would flatter the rule.
    if undefined := int((oracle <= 0).sum()):
        reason = f"the oracle's score is 0 or below at {undefined} of {oracle.size} thresholds"
        return {"relative": None, "absolute": absolute, "reason": reason}
    return {"relative": float((difference / oracle).mean()), "absolute": absolute}


def _scores_along(rule: str, layout: Layout) -> NDArray[np.float64]:
    """Return the scores of a rule's selections at every threshold, shape [layouts, m]."""
    return np.take_along_axis(layout.score, select_at_thresholds(rule, layout), axis=1)


def _resampled(
    means: pd.DataFrame, num_layouts: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw utility and score around the means, each [num_layouts, m]."""
    if num_layouts < 1:
        raise ValueError(f"num_layouts must be >= 1, got {num_layouts}. The paper draws 5000.")
    single = int((means["num_seeds"] < 2).sum())
    if single:
        raise ValueError(
            f"layout 'resample' must have at least 2 seeds per configuration, got {single} of "
            f"{len(means)} configurations with one. Add seeds, or use layout 'mean'."
        )
    generator = np.random.default_rng(seed)
    drawn = [
        generator.normal(means[column], means[f"{column}_std"], size=(num_layouts, len(means)))
        for column in ("utility_loss", "score")
    ]
    return drawn[0], drawn[1]
