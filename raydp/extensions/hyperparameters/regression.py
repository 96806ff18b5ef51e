"""Regression of the score on log hyperparameters (Hu et al. 2025, Table 2)."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raydp.analysis.statistics.results import Reason
from raydp.analysis.statistics.spread import std, unit_of
from raydp.analysis.tables.columns import KEY
from raydp.analysis.tables.coordinates import Coordinates
from raydp.analysis.tables.points import require_hyperparameters
from raydp.search_spaces.configuration import HYPERPARAMETERS
from raydp.search_spaces.names import unknown_name

Errors = Literal["ols", "hc3", "cluster", "mixed"]
ERRORS: tuple[str, ...] = get_args(Errors)

_NOT_CONVERGED = "the mixed model has not converged"


class Term(TypedDict):
    """One coefficient of a regression."""

    coef: float | None
    std_error: float | None
    t: float | None
    p: float | None


class Fit(Reason):
    """The figures of a fit beside its coefficients."""

    r_squared: float | None
    configuration_std: NotRequired[float]
    residual_std: NotRequired[float]


class Regression(Fit):
    """One regression (`regress` explains the figures)."""

    n: int
    errors: Errors
    terms: dict[str, Term]


def regress(points: pd.DataFrame, *, errors: Errors = "ols") -> dict[str, Regression]:
    """Regress the score by ordinary least squares on (configuration, seed) rows, as R's `lm`.

    Args:
        points: a points table. Apply `useful_points` first to regress on the models above a utility
            threshold.
        errors: how standard errors, t and p are computed. "ols": as in the paper, for independent
            rows of equal variance. "hc3": for unequal variances. "cluster": for correlated rows of
            one configuration, such as seeds. "mixed": a random intercept of each configuration, by
            restricted maximum likelihood. With "mixed" the coefficients change as well, "t" is z,
            and "configuration_std" and "residual_std" are the two standard deviations.

    Returns:
        "individual" on (ln b, ln T, ln η) and "composite" on (ln C, ln η), C = b·T. Both are also
        on the coordinates of the further fields that vary (see `Coordinates`). The values of a
        field that is no number are compared with its first value. A coordinate that other
        coordinates determine is left out. Each is {"n", "r_squared", "errors", "terms":
        {"intercept", "log_...": {"coef", "std_error", "t", "p"}}}. p is two-sided under Student's t
        with n - terms degrees of freedom ("cluster": configurations - 1; "mixed": Gaussian). If a
        fit is undefined, its figures are None and "reason" says why.

    Raises:
        ValueError: as `configuration_means`, or an unknown kind of errors.

    Source: Hu et al. 2025, §4.1, Table 2; MacKinnon and White 1985 (HC3); Liang and Zeger 1986
    (cluster).
    """
    if errors not in ERRORS:
        raise ValueError(unknown_name("errors", errors, ERRORS))
    points = require_hyperparameters(points)
    score = points["score"].to_numpy(dtype=np.float64)
    groups = np.asarray(points.groupby(KEY, sort=True).ngroup(), dtype=np.int64)
    log_b, log_t, log_rate = (
        np.log(points[name].to_numpy(dtype=np.float64)) for name in HYPERPARAMETERS
    )
    further = Coordinates.of(points).against_first(points)
    individual = {
        "log_batch_size": log_b,
        "log_num_steps": log_t,
        "log_learning_rate": log_rate,
        **further,
    }
    composite = {"log_compute": log_b + log_t, "log_learning_rate": log_rate, **further}
    return {
        "individual": _fit(score, individual, groups, errors),
        "composite": _fit(score, composite, groups, errors),
    }


def _fit(
    score: NDArray[np.float64],
    covariates: dict[str, NDArray[np.float64]],
    groups: NDArray[np.int64],
    errors: Errors,
) -> Regression:
    """Return one regression with an intercept."""
    design = np.column_stack([np.ones_like(score), *covariates.values()])
    terms = ["intercept", *covariates]
    unit = unit_of(score)  # so that no square of a score vanishes or overflows
    fitted: Fitted = (
        _undefined(score, design, list(covariates))
        or _without_groups(groups, len(terms), errors)
        # Some reasons show only in the fit itself.
        or (
            _mixed(score / unit, design, groups)
            if errors == "mixed"
            else _least_squares(score / unit, design, groups, errors)
        )
    )
    # An undefined fit is a result too: it says why.
    if isinstance(fitted, str):
        undefined = {term: Term(coef=None, std_error=None, t=None, p=None) for term in terms}
        return {
            "n": len(score),
            "errors": errors,
            "r_squared": None,
            "terms": undefined,
            "reason": fitted,
        }
    figures, fit = fitted
    # Back to the score's own unit. t and p have none.
    figures[:, :2] *= unit
    if "configuration_std" in fit:
        fit["configuration_std"] *= unit
        fit["residual_std"] *= unit
    named = [Term(coef=coef, std_error=error, t=t, p=p) for coef, error, t, p in figures.tolist()]
    return {
        "n": len(score),
        "errors": errors,
        **fit,
        "terms": dict(zip(terms, named, strict=True)),
    }


Fitted = tuple[NDArray[np.float64], Fit] | str
"""Either [term, figure] and the further results of a fit, or the reason why there is no fit."""


def _least_squares(
    score: NDArray[np.float64],
    design: NDArray[np.float64],
    groups: NDArray[np.int64],
    errors: Errors,
) -> Fitted:
    from statsmodels.regression.linear_model import OLS  # half a second to import

    # HC3 divides by 1 - leverage.
    if errors == "hc3" and ((np.linalg.qr(design)[0] ** 2).sum(axis=1) > 1 - 1e-9).any():
        return "a row alone decides a coefficient (its leverage is 1), so HC3 is undefined"
    kind = {"ols": "nonrobust", "hc3": "HC3", "cluster": "cluster"}[errors]
    more = {"cov_kwds": {"groups": groups}} if errors == "cluster" else {}
    with np.errstate(all="ignore"):  # figures that are not finite are handled below
        fit = OLS(score, design).fit(cov_type=kind, use_t=True, **more)
        figures = np.column_stack([fit.params, fit.bse, fit.tvalues, fit.pvalues])
    if not (np.isfinite(figures).all() and np.isfinite(fit.rsquared)):
        return "the standard errors are lost in rounding: the scores are fitted exactly"
    return figures, {"r_squared": float(fit.rsquared)}


def _mixed(
    score: NDArray[np.float64], design: NDArray[np.float64], groups: NDArray[np.int64]
) -> Fitted:
    """Fit by REML. Score and covariates are standardised, as the search for the variance needs."""
    import warnings

    from statsmodels.regression.mixed_linear_model import MixedLM
    from statsmodels.tools.sm_exceptions import ConvergenceWarning, SingularMatrixWarning

    scale, centre = std(score), float(score.mean())
    spread, middle = design[:, 1:].std(axis=0), design[:, 1:].mean(axis=0)
    standard = np.column_stack([design[:, 0], (design[:, 1:] - middle) / spread])
    with warnings.catch_warnings():
        # A variance of 0, on the boundary, is a valid result.
        for kind in (ConvergenceWarning, SingularMatrixWarning):
            warnings.simplefilter("ignore", kind)
        try:
            fit = MixedLM((score - centre) / scale, standard, groups).fit(
                reml=True, method=["lbfgs", "powell"]
            )
        except np.linalg.LinAlgError:
            return _NOT_CONVERGED
    # Undo the standardisation: divide the slopes by the spread, and correct the intercept for the
    # covariates' means.
    terms = design.shape[1]
    back = np.diag(np.concatenate([[1.0], 1 / spread]))
    back[0, 1:] = -middle / spread
    params = back @ np.asarray(fit.fe_params) * scale
    params[0] += centre
    covariance = back @ np.asarray(fit.cov_params())[:terms, :terms] @ back.T * scale**2
    variance = np.diag(covariance)
    # A search that failed returns numbers too.
    if not (fit.converged and np.isfinite(variance).all() and (variance > 0).all()):
        return _NOT_CONVERGED
    error = np.sqrt(variance)
    from scipy.stats import norm

    # REML gives no degrees of freedom, so the tests are Gaussian.
    z = params / error
    return np.column_stack([params, error, z, 2 * norm.sf(np.abs(z))]), {
        "r_squared": None,
        "reason": "a mixed model has no r_squared",
        "configuration_std": float(np.sqrt(max(0.0, float(np.asarray(fit.cov_re)[0, 0])))) * scale,
        "residual_std": float(np.sqrt(fit.scale)) * scale,
    }


def _without_groups(groups: NDArray[np.int64], terms: int, errors: Errors) -> str | None:
    """Return why errors that need several configurations or seeds cannot be computed, or None."""
    count = len(np.unique(groups))
    # Errors by configuration have as many degrees of freedom as configurations, not rows.
    if errors in ("cluster", "mixed") and count <= terms:
        return f"{count} configurations are too few for {terms} coefficients and errors by configuration"
    if errors == "mixed" and count == len(groups):
        return "a mixed model needs a configuration with two seeds"
    return None


def _undefined(
    score: NDArray[np.float64], design: NDArray[np.float64], names: list[str]
) -> str | None:
    """Return why a fit is undefined, or None."""
    rows, columns = design.shape
    if rows <= columns:
        return f"{rows} rows are too few for {columns} coefficients and their standard errors"
    # A constant column lowers the rank as well, but its name tells more.
    constant = [
        name for name, column in zip(names, design.T[1:], strict=True) if np.ptp(column) == 0
    ]
    if constant:
        return f"{' and '.join(constant)} is the same in every row"
    if np.linalg.matrix_rank(design) < columns:
        return f"{', '.join(names)} are linearly dependent in these rows"
    if np.ptp(score) == 0:
        return "the score is the same in every row"
    return None
