"""How far the values of two methods agree, without a test (Zagardo 2024, Tables 3 to 10)."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from raydp.analysis.statistics.results import Reason, unknown_figures
from raydp.analysis.statistics.spread import std, unit_of

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""A relative spread below this is attributed to rounding."""


class Agreement(Reason):
    """Statistics of the pairs of two methods' values, a and b.

    Keys:
        mae: mean of |a - b|.
        mse: mean of (a - b)².
        median_error: median of |a - b|.
        r2: 1 - Σ (a - b)² / Σ (a - mean of a)², so b is taken for a prediction of a. None if a has
            one value everywhere.
        mape: mean of |a - b| / |a|. None if a value of a is 0.
        variation_a, variation_b: standard deviation (ddof = 1) of one method's values over their
            mean. None without two values, or if the mean is not above 0.
    """

    mae: float | None
    mse: float | None
    median_error: float | None
    r2: float | None
    mape: float | None
    variation_a: float | None
    variation_b: float | None


UNKNOWN = cast("Agreement", unknown_figures(Agreement))
"""The agreement of methods that share no configuration."""


def agreement(one: Array, other: Array) -> tuple[Agreement, list[str]]:
    """Return the agreement of n >= 1 pairs, and the reasons for the figures that are None.

    Args:
        one, other: [n] values of a and of b, at most 1e150 in size.

    Source: Zagardo 2024, Tables 3 to 10. The paper prints no formulas. Its figures follow from
        these: R² and MAPE take the first named model for the truth, and the three columns of a
        coefficient of variation are those of the three models (Table 3 beside Table 2).
    """
    # In a unit in which squares neither vanish nor overflow.
    unit = unit_of(one - other)
    error = np.abs(one - other) / unit
    found: Agreement = {
        **UNKNOWN,
        "mae": float(error.mean() * unit),
        "mse": float(np.mean(error**2) * unit * unit),
        "median_error": float(np.median(error) * unit),
        "variation_a": _variation(one),
        "variation_b": _variation(other),
    }
    reasons = []
    if np.ptp(one) > ROUNDING * np.abs(one).max():
        found["r2"] = _finite(1 - _share(one - other, one - one.mean()))
    else:
        reasons.append("R² needs values of a that differ")
    if one.all():
        found["mape"] = _finite(float(np.mean(np.abs(one - other) / np.abs(one))))
    else:
        reasons.append("a relative error needs values of a other than 0")
    if found["variation_a"] is None or found["variation_b"] is None:
        reasons.append("a coefficient of variation needs two values with a mean above 0")
    return found, reasons


def _share(error: Array, deviation: Array) -> float:
    """Return the sum of squares of the errors over the one of the deviations."""
    scale = np.abs(deviation).max()
    with np.errstate(over="ignore"):
        return float(np.sum((error / scale) ** 2) / np.sum((deviation / scale) ** 2))


def _variation(values: Array) -> float | None:
    """Return the coefficient of variation, or None."""
    mean = float(values.mean())
    return _finite(std(values) / mean) if len(values) > 1 and mean > 0 else None


def _finite(value: float) -> float | None:
    """Return a number, or None in place of an overflow."""
    return value if math.isfinite(value) else None
