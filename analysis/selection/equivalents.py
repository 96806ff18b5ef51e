"""The choice between equivalent scores: the most useful, and of equal utility the cheapest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.surface.posterior import Posterior

Array = NDArray[np.float64]
Pool = NDArray[np.bool_]
Pools = NDArray[np.bool_]

CONFIDENCE = 0.95
"""The probability that a decision needs by default."""
TOLERANCE = 0.1
"""The tolerance of a decision by default. Two scores that differ by less are equivalent."""
_NO_SEEDS = "no configuration has two seeds, so the errors of the scores are not known"
_NO_SPREAD = "no score differs between two seeds, so the errors of the scores are not known"


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The confidence and tolerance at which a decision counts as reached.

    Attributes:
        confidence: required probability that a configuration has the lowest score, or one within
            the tolerance of it.
        tolerance: the relative difference of two scores that are equivalent.

    Raises:
        ValueError: a confidence outside [0.5, 1), or a tolerance that is negative or not finite.
    """

    confidence: float = CONFIDENCE
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise ValueError(
                f"confidence must be in [0.5, 1), got {self.confidence:g}. Leave it out for "
                f"{CONFIDENCE:g}."
            )
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise ValueError(
                f"tolerance must be 0 or above, got {self.tolerance:g}. Leave it out for "
                f"{TOLERANCE:g}."
            )


def unknown_errors(means: pd.DataFrame) -> str | None:
    """Return why the errors of the scores are unknown, so that nothing is decided, or None.

    Only a second run shows how far chance in training moves a score. The values by secret of one
    run cannot show it, because the run's batches and noise move all values together.
    """
    if means["num_seeds"].max() < 2:
        return _NO_SEEDS
    if not (means["score_std"] > 0).any():
        return _NO_SPREAD
    return None


def equivalents(
    means: pd.DataFrame,
    scores: Posterior,
    pools: Pools,
    precision: Precision,
    *,
    log_base: float | None,
) -> Pools:
    """Return each pool's configurations whose scores are equivalent to the pool's lowest score.

    A configuration is equivalent if its score is within the tolerance of the pool's lowest score
    with a posterior probability of at least the confidence. The probability still holds if another
    figure, such as the compute, chooses among the equivalent configurations.

    Args:
        pools: [pools, m] whether a configuration is in a pool. Nested pools are computed together.

    Returns:
        [pools, m] whether a configuration is equivalent. The row of a pool is all False if the
        errors of the scores are unknown, if no configuration reaches the confidence, or if one
        configuration has the lowest score at the confidence.
    """
    kept, nothing = np.zeros_like(pools), np.zeros(pools.shape[-1], dtype=np.bool_)
    before, lowest, close = nothing, np.full(len(scores.draws), np.inf), nothing
    # Small pools first: a pool that contains the previous pool continues its running minimum.
    for at in np.argsort(pools.sum(axis=1), kind="stable"):
        pool = pools[at]
        # This pool does not contain the previous pool: start again.
        if (before & ~pool).any():
            before, lowest, close = nothing, np.full(len(scores.draws), np.inf), nothing
        # More members only lower the lowest score, so a member that was not close stays so.
        new = pool & ~before
        lowest = np.minimum(lowest, scores.draws[:, new].min(axis=1, initial=np.inf))
        highest = scores.highest_within(lowest, precision.tolerance, log_base=log_base)
        close = _often_below(scores.draws, close | new, highest, precision.confidence)
        before = pool
        decided = _often_below(scores.draws, close, lowest, precision.confidence).any()
        if not decided and pool.sum() > 1 and unknown_errors(means) is None:
            kept[at] = close
    return kept


def _often_below(draws: Array, members: Pool, bound: Array, confidence: float) -> Pool:
    """Return the members whose draws, [num_draws, m], keep to the bounds with the confidence."""
    often, some = np.zeros_like(members), np.flatnonzero(members)
    often[some] = (draws[:, some] <= bound[:, None]).mean(axis=0) >= confidence
    return often


def cheapest_of_the_most_useful(members: Pool, loss: Array, error: Array, compute: Array) -> Pool:
    """Return [m], True at the cheapest member whose loss is within an error of the lowest loss.

    Args:
        members: [m] whether a configuration is a member; at least one is.
        loss: [m] mean utility losses.
        error: [m] their standard errors.
        compute: [m] what a run costs to train.

    Losses up to one standard error of the lowest loss above it count as equal. Of members with the
    same compute, the lower loss decides, and then the position.

    Source: the one-standard-error rule of Breiman, Friedman, Olshen and Stone 1984, section 3.4.3,
    with compute in the place of a model's size.
    """
    most_useful = int(np.where(members, loss, np.inf).argmin())
    as_useful = members & (loss <= loss[most_useful] + error[most_useful])
    # By usefulness, then compute, then loss: lexsort reads its keys from the last to the first.
    kept: Pool = np.arange(len(members)) == np.lexsort([loss, compute, ~as_useful])[0]
    return kept
