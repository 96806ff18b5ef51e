"""Regression figures against R's `lm` and against the normal equations."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import regress
from analysis.regression import _fit
from search_spaces import grid

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
FULL = grid([16, 32, 64], [4, 8, 32], ["5e-4", "1e-3", "3e-3"])


def table_of(scores, configurations=FULL):
    return pd.DataFrame(
        [(c.batch_size, c.num_steps, c.learning_rate, 0, 1.0, s) for c, s in zip(configurations, scores, strict=False)],
        columns=COLUMNS,
    )


def textbook(score, design):
    """Least squares by lstsq, then Student's t."""
    coef = np.linalg.lstsq(design, score, rcond=None)[0]
    residual = score - design @ coef
    freedom = len(score) - design.shape[1]
    error = np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * (residual @ residual) / freedom)
    r_squared = 1 - residual @ residual / ((score - score.mean()) ** 2).sum()
    return coef, error, coef / error, 2 * stats.t.sf(abs(coef / error), freedom), r_squared


def test_figures_are_those_of_r():
    """summary(lm(stack.loss ~ ., stackloss)), the example of R's own help page, as R prints it."""
    air = [80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70]
    water = [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
    acid = [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
    loss = [42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15]
    covariates = {"air": np.array(air, float), "water": np.array(water, float), "acid": np.array(acid, float)}
    fit = _fit(np.array(loss, float), covariates)
    printed = {
        "intercept": (-39.9197, 11.8960, -3.356, 0.00375),
        "air": (0.7156, 0.1349, 5.307, 5.80e-05),
        "water": (1.2953, 0.3680, 3.520, 0.00263),
        "acid": (-0.1521, 0.1563, -0.973, 0.34405),
    }
    for term, (coef, error, t, p) in printed.items():  # tolerances: half a unit of R's last printed digit
        found = fit["terms"][term]
        assert found["coef"] == pytest.approx(coef, abs=5e-5)
        assert found["std_error"] == pytest.approx(error, abs=5e-5)
        assert found["t"] == pytest.approx(t, abs=5e-4)
        assert found["p"] == pytest.approx(p, abs=5e-6 if p > 1e-4 else 5e-8)
    assert fit["r_squared"] == pytest.approx(0.9136, abs=5e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1, width=16), min_size=len(FULL), max_size=len(FULL), unique=True))
def test_figures_are_those_of_the_textbook(scores):
    table = table_of(scores)
    b, t, rate = (np.log(table[name].to_numpy(float)) for name in COLUMNS[:3])
    one = np.ones(len(table))
    designs = {"individual": np.column_stack([one, b, t, rate]), "composite": np.column_stack([one, b + t, rate])}
    found = regress(table)
    for name, design in designs.items():
        coef, error, tvalue, p, r_squared = textbook(np.array(scores), design)
        terms = pd.DataFrame(found[name]["terms"]).T
        # Two factorisations of a design with condition number below 100: about 1e-12 relative; 1e-8 leaves room for
        # coefficients that cancel to nearly nothing.
        np.testing.assert_allclose(terms["coef"], coef, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(terms["std_error"], error, rtol=1e-8)
        np.testing.assert_allclose(terms["t"], tvalue, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(terms["p"], p, rtol=1e-8)
        assert found[name]["r_squared"] == pytest.approx(r_squared, abs=1e-10)
        assert found[name]["n"] == len(table)
    assert list(found["individual"]["terms"]) == ["intercept", "log_batch_size", "log_num_steps", "log_learning_rate"]
    assert list(found["composite"]["terms"]) == ["intercept", "log_compute", "log_learning_rate"]


def test_every_seed_is_a_row():
    table = table_of(np.linspace(0, 1, len(FULL)) ** 2)
    assert regress(pd.concat([table, table.assign(seed=1)]))["composite"]["n"] == 2 * len(FULL)


@pytest.mark.parametrize(
    ("configurations", "scores", "reason"),
    [
        (grid([16, 32], [4], ["1e-3", "2e-3", "4e-3"]), [1, 2, 3, 5, 8, 9], "log_num_steps is the same in every row"),
        (FULL[:4], [1, 2, 3, 5], "4 rows are too few for 4 coefficients"),
        (FULL, [0.25] * len(FULL), "the score is the same"),
        (FULL, [k**2 * 1e-200 for k in range(len(FULL))], "too large or too small"),
        ([c for c in FULL if c.batch_size * 3e-5 > c.learning_rate > c.batch_size * 1.4e-5], range(9), "individual"),
    ],
)
def test_undefined_fits_are_null_with_a_reason(configurations, scores, reason):
    fit = regress(table_of(scores, configurations))["individual"]
    if reason == "individual":  # η is a power of b in these rows: neither coefficient can be told
        assert {(c.batch_size, c.learning_rate) for c in configurations} == {(32, 5e-4), (64, 1e-3)}
        reason = "linearly dependent"
    assert reason in fit["reason"]
    assert fit["r_squared"] is None
    assert {figure for term in fit["terms"].values() for figure in term.values()} == {None}
    json.dumps(fit, allow_nan=False)
