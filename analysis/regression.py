"""Regression of the score on log hyperparameters (Hu et al. 2025, Table 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.points import require_hyperparameters

_FIGURES = ("coef", "std_error", "t", "p")


def regress(points: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Ordinary least squares of the score, one row per (configuration, seed); the figures of R's `lm`.

    Args:
        points: a points table. Apply `useful_points` first to regress on the models above a utility threshold.

    Returns:
        "individual" on (ln b, ln T, ln η) and "composite" on (ln C, ln η), C = b·T: {"n", "r_squared", "terms":
        {"intercept", "log_...": {"coef", "std_error", "t", "p"}}}, p two-sided under Student's t with n - terms
        degrees of freedom. Where the fit is undefined its figures are None and "reason" says why.

    Raises:
        ValueError: as `configuration_means`.

    Source: Hu et al. 2025, §4.1, Table 2.
    """
    points = require_hyperparameters(points)
    score = points["score"].to_numpy(dtype=np.float64)
    log_b, log_t, log_rate = (
        np.log(points[name].to_numpy(dtype=np.float64)) for name in ("batch_size", "num_steps", "learning_rate")
    )
    return {
        "individual": _fit(score, {"log_batch_size": log_b, "log_num_steps": log_t, "log_learning_rate": log_rate}),
        "composite": _fit(score, {"log_compute": log_b + log_t, "log_learning_rate": log_rate}),
    }


def _fit(score: NDArray[np.float64], covariates: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """One regression with an intercept."""
    design = np.column_stack([np.ones_like(score), *covariates.values()])
    terms = ["intercept", *covariates]
    result: dict[str, Any] = {"n": len(score)}
    reason = _undefined(score, design, list(covariates))
    if reason is None:
        from statsmodels.regression.linear_model import OLS  # half a second to import

        fit = OLS(score, design).fit()
        figures = np.column_stack([fit.params, fit.bse, fit.tvalues, fit.pvalues])  # [term, figure]
        if np.isfinite(figures).all() and np.isfinite(fit.rsquared):
            named = [dict(zip(_FIGURES, row, strict=True)) for row in figures.tolist()]
            return result | {"r_squared": float(fit.rsquared), "terms": dict(zip(terms, named, strict=True))}
        reason = "the scores are too large or too small for their squares to be doubles"
    return result | {"r_squared": None, "terms": {term: dict.fromkeys(_FIGURES) for term in terms}, "reason": reason}


def _undefined(score: NDArray[np.float64], design: NDArray[np.float64], names: list[str]) -> str | None:
    """Why a fit has no figures, or None."""
    rows, columns = design.shape
    if rows <= columns:
        return f"{rows} rows are too few for {columns} coefficients and their standard errors"
    constant = [name for name, column in zip(names, design.T[1:], strict=True) if np.ptp(column) == 0]
    if constant:
        return f"{' and '.join(constant)} is the same in every row"
    if np.linalg.matrix_rank(design) < columns:
        return f"{', '.join(names)} are linearly dependent in these rows"
    if np.ptp(score) == 0:
        return "the score is the same in every row"
    return None
