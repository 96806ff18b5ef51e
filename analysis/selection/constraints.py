"""Constraints that a configuration must meet before a rule sees it: bounds on its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.noise import upper_limit
from raydp.analysis.tables.points import column_means
from raydp.analysis.tables.statements import UNPROVEN
from raydp.analysis.tables.utility_filter import loss_threshold, pool_within, shown_threshold
from raydp.search_spaces.names import familiar, unknown_name

Array = NDArray[np.float64]
Pool = NDArray[np.bool_]

Gain = TypeVar("Gain", float, Array)

COMPUTE = "compute"


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Bounds on a configuration's figures.

    Attributes:
        max_loss: highest mean utility_loss; overrides min_gain_share.
        min_gain_share: share in [0, 1] of the best gain over the untrained model (see
            `loss_threshold`).
        base_utility_loss: the untrained model's loss. Without it, the column of that name is
            used.
        max_score: highest score that a configuration may have at 95 % confidence. The upper limit
            of its mean is compared if seeds or secrets tell the mean's error; otherwise the mean
            itself.
        at_most: column -> highest value of its mean over seeds, such as {"epsilon": 8, "score.air":
            0.1}. "compute" is C = b·T.

    Source: Hu et al. 2025, section 4.2 (bounds on both the formal guarantee and what was measured).
    """

    max_loss: float | None = None
    min_gain_share: float | None = None
    base_utility_loss: float | None = None
    max_score: float | None = None
    at_most: Mapping[str, float] = field(default_factory=dict)

    @property
    def bounds_utility(self) -> bool:
        """Return whether there is a utility threshold."""
        return self.max_loss is not None or self.min_gain_share is not None

    def least_gain(self, best_gain: Gain) -> Gain:
        """Return the least gain over the untrained model, given the best gain."""
        assert self.min_gain_share is not None, "without a share, max_loss is the threshold"
        return self.min_gain_share * best_gain

    def thresholds(self, means: pd.DataFrame) -> Array | None:
        """Return the largest loss allowed to each configuration, [m]; None without a threshold."""
        return loss_threshold(
            means,
            max_loss=self.max_loss,
            min_gain_share=self.min_gain_share,
            base_utility_loss=self.base_utility_loss,
        )

    def narrowings(
        self, points: pd.DataFrame, means: pd.DataFrame, by_secret: tuple[pd.DataFrame, str] | None
    ) -> list[tuple[str, str, Pool]]:
        """Return (name, rule in words, [m] whether a configuration keeps to it) per constraint.

        Raises:
            ValueError: an unknown column, a bound that is not finite, or a bound that no
                configuration keeps to.
        """
        kept_by: list[tuple[str, str, Pool]] = []
        if (threshold := self.thresholds(means)) is not None:
            loss = means["utility_loss"].to_numpy()
            text = f"keep a mean utility loss of at most {shown_threshold(loss, float(threshold.max()))}"
            # A gain is relative to base_utility_loss, which may differ between configurations.
            if threshold.min() < threshold.max():
                text += ", or less where base_utility_loss is less"
            kept_by.append(("utility threshold", text, pool_within(means, threshold)))
        if self.max_score is not None and means["score"].isna().all():
            raise ValueError(
                f"max_score must be left out if no score was measured, got {self.max_score:g}. "
                "Measure a score by `raydp score`, or leave it out."
            )
        if self.max_score is not None:
            # The bound is for the true score, so the upper confidence limit must keep to it.
            limit, of_what = upper_limit(points, means, by_secret)
            text = f"keep {of_what} of at most {self.max_score:g}"
            kept_by.append(("score bound", text, _kept("max_score", limit, self.max_score)))
        for column, bound in self.at_most.items():
            text = f"keep a mean {column} of at most {bound:g}"
            values = _column(points, means, column)
            kept_by.append((f"{column} bound", text, _kept(f"at_most {column}", values, bound)))
        return kept_by


def _column(points: pd.DataFrame, means: pd.DataFrame, column: str) -> Array:
    """Return the means over seeds of a column, in the order of `means`, shape [m]."""
    if column == COMPUTE:
        compute: Array = means["batch_size"].to_numpy(dtype=np.float64) * means[
            "num_steps"
        ].to_numpy(dtype=np.float64)
        return compute
    if column in UNPROVEN:
        raise ValueError(
            f"at_most must bound what is known, got {column}: nothing proves it, and epsilon is "
            "infinite there. Remove it."
        )
    # Text has no mean to bound.
    known = [str(c) for c in points if pd.api.types.is_numeric_dtype(points[c])]
    if column not in known:
        raise ValueError(unknown_name("at_most: the column", column, [*familiar(known), COMPUTE]))
    values = column_means(points, column)
    # A configuration without the figure must not pass a bound on it.
    if np.isnan(values).any():
        raise ValueError(
            f"{column} must be given in every finished row to be bounded, got "
            f"{int(np.isnan(values).sum())} of {len(values)} configurations without. Bound another "
            "column."
        )
    return values


def _kept(name: str, values: Array, bound: float) -> Pool:
    """Return which configurations keep to a bound, shape [m]. Raise ValueError if none does."""
    if not math.isfinite(bound):
        raise ValueError(f"{name} must be finite, got {bound}. Leave it out for no bound.")
    kept: Pool = values <= bound
    if not kept.any():
        raise ValueError(
            f"{name} must be at least {float(values.min())!r}, the lowest there is, got {bound:g}. "
            "Raise it."
        )
    return kept
