"""The utility threshold that is applied before every selection."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.old_names import reads_old_name
from raydp.analysis.tables.points import (
    configuration_means,
    configurations,
    exact,
    require_hyperparameters,
)
from raydp.analysis.tables.statements import rounded_up

# A user's threshold may be a mean over seeds from another program, which differs from ours by the
# rounding of its sum. Each partial sum contributes half a unit in the last place and is no larger
# than the total over seeds.
_ROUNDING_ULPS = 4
_FEWEST_DIGITS = 6


def loss_threshold(
    means: pd.DataFrame,
    *,
    max_loss: float | None = None,
    min_gain_share: float | None = None,
    base_utility_loss: float | None = None,
) -> NDArray[np.float64] | None:
    """Return the largest mean utility loss that each configuration may have.

    Args:
        means: configuration means.
        max_loss: a threshold in the unit of utility_loss; overrides min_gain_share.
        min_gain_share: share in [0, 1] of the best configuration's gain, gain = base_utility_loss
            - utility_loss.
        base_utility_loss: loss of the untrained model. Without it, the column of that name is
            used.

    Returns:
        [m] thresholds, or None if neither constraint is given.

    Raises:
        ValueError: a constraint out of range, no base_utility_loss, or no configuration that gains
            anything.

    Source: Hu et al. 2025, §3 (models with at least 90 % of the best gain are kept).
    """
    if max_loss is not None:
        if not math.isfinite(max_loss):
            raise ValueError(
                f"max_loss must be finite, got {max_loss}. Leave it out to select without a "
                "threshold."
            )
        return np.full(len(means), max_loss)
    if min_gain_share is None:
        return None
    if not 0 <= min_gain_share <= 1:
        raise ValueError(
            f"min_gain_share must be in [0, 1], got {min_gain_share}. 0.9 is the paper's value."
        )
    base = base_loss(means, base_utility_loss)
    # Exact decimals: a configuration on the boundary must not be lost to rounding.
    best_gain = max(b - exact(loss) for b, loss in zip(base, means["utility_loss"], strict=True))
    if best_gain <= 0:
        raise ValueError(
            "min_gain_share must be left out if no configuration is better than the base model, "
            f"got {min_gain_share:g} and a best gain of {float(best_gain):.6g}. Use max_loss, or "
            "widen the space."
        )
    return np.array([float(b - exact(min_gain_share) * best_gain) for b in base])


def within(
    utility_loss: NDArray[np.float64], threshold: NDArray[np.float64] | float
) -> NDArray[np.bool_]:
    """Return whether each loss is at most its threshold, up to rounding. The two are broadcast."""
    scale = np.maximum(np.abs(utility_loss), np.abs(threshold))
    allowed: NDArray[np.bool_] = utility_loss <= threshold + rounding(scale)
    return allowed


def rounding(scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much losses of this size may pass a threshold and still count as equal."""
    return _ROUNDING_ULPS * np.spacing(np.abs(scale))


def shown_threshold(utility_loss: NDArray[np.float64], threshold: float) -> str:
    """Format a threshold so that the printed value, given to `--max-loss`, admits the same losses.

    Args:
        utility_loss: [m] mean losses of all configurations.
        threshold: the applied threshold.
    """
    inside = within(utility_loss, threshold)
    highest = float(utility_loss[inside].max(initial=threshold))
    return threshold_text(highest, float(utility_loss[~inside].min(initial=np.inf)))


def threshold_text(threshold: float, above: float) -> str:
    """Round a threshold up to six digits, or to more to stay below the next loss above it."""
    exact = Decimal(repr(threshold))
    for digits in range(_FEWEST_DIGITS, 18):
        place = Decimal(1).scaleb(exact.adjusted() - digits + 1)
        # Up, so that the shown threshold still admits the losses that it admitted.
        rounded = exact.quantize(place, rounding=ROUND_CEILING)
        if rounded < Decimal(repr(above)):
            return (
                f"{rounded.normalize():f}"
                if abs(exact.adjusted()) < 7
                else f"{rounded.normalize():e}"
            )
    return repr(threshold)


@reads_old_name
def useful_points(
    points: pd.DataFrame,
    *,
    max_loss: float | None = None,
    min_gain_share: float | None = None,
    base_utility_loss: float | None = None,
) -> pd.DataFrame:
    """Return the rows of the configurations whose mean utility passes.

    Configurations are filtered, not single rows.

    Args:
        points: a points table.
        max_loss, min_gain_share, base_utility_loss: as for `loss_threshold`.

    Raises:
        ValueError: as `loss_threshold`, or no configuration passes. The message gives the lowest
            loss.

    Source: Hu et al. 2025, §3 and Table 2 (114 rows = 38 configurations that pass x 3 seeds).
    """
    points = require_hyperparameters(points)
    means = configuration_means(points)
    threshold = loss_threshold(
        means, max_loss=max_loss, min_gain_share=min_gain_share, base_utility_loss=base_utility_loss
    )
    if threshold is None:
        return points
    keep = pool_within(means, threshold)
    return points[
        pd.MultiIndex.from_frame(points[KEY]).isin(pd.MultiIndex.from_frame(means.loc[keep, KEY]))
    ]


def pool_within(means: pd.DataFrame, threshold: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which configurations pass, shape [m].

    Raises:
        ValueError: no configuration passes. The message names the nearest one.
    """
    loss = means["utility_loss"].to_numpy()
    pool = within(loss, threshold)
    if not pool.any():
        best = int(loss.argmin())
        raise ValueError(
            f"max_loss must be at least the lowest mean utility_loss, {rounded_up(loss[best], 6):g} of "
            f"{configurations(means.iloc[[best]])[0]}, got {float(threshold[best])!r}. Raise it, "
            "or widen the space."
        )
    return pool


def base_loss(means: pd.DataFrame, base_utility_loss: float | None) -> list[Fraction]:
    """Return the untrained model's loss, as given or from the table, [m].

    The losses are exact decimals: in floating point, 3.1 - 0.9·1.2 is below 2.02, and a
    configuration on the boundary would be lost.
    """
    if base_utility_loss is not None:
        base = np.full(len(means), base_utility_loss, dtype=np.float64)
    elif "base_utility_loss" in means.columns:
        base = means["base_utility_loss"].to_numpy(dtype=np.float64)
    else:
        raise ValueError(
            "min_gain_share must have a base_utility_loss to gain on, got none. "
            "Give it, or add the column to the points."
        )
    if not np.isfinite(base).all():
        raise ValueError(
            "base_utility_loss must be finite in every finished row, got a missing value. Use "
            "max_loss."
        )
    return [exact(loss) for loss in base]
