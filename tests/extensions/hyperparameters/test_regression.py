"""Regression figures against R's `lm` and against the normal equations."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from raydp.analysis import regress
from raydp.extensions.hyperparameters.regression import _fit
from raydp.search_spaces import grid

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]
FULL = grid([16, 32, 64], [4, 8, 32], ["5e-4", "1e-3", "3e-3"])


def table_of(scores, configurations=FULL):
    return pd.DataFrame(
        [
            (c.batch_size, c.num_steps, c.learning_rate, 0, 1.0, s)
            for c, s in zip(configurations, scores, strict=False)
        ],
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
    covariates = {
        "air": np.array(air, float),
        "water": np.array(water, float),
        "acid": np.array(acid, float),
    }
    fit = _fit(np.array(loss, float), covariates, np.arange(21), "ols")
    printed = {
        "intercept": (-39.9197, 11.8960, -3.356, 0.00375),
        "air": (0.7156, 0.1349, 5.307, 5.80e-05),
        "water": (1.2953, 0.3680, 3.520, 0.00263),
        "acid": (-0.1521, 0.1563, -0.973, 0.34405),
    }
    for term, (
        coef,
        error,
        t,
        p,
    ) in printed.items():  # tolerances: half a unit of R's last printed digit
        found = fit["terms"][term]
        assert found["coef"] == pytest.approx(coef, abs=5e-5)
        assert found["std_error"] == pytest.approx(error, abs=5e-5)
        assert found["t"] == pytest.approx(t, abs=5e-4)
        assert found["p"] == pytest.approx(p, abs=5e-6 if p > 1e-4 else 5e-8)
    assert fit["r_squared"] == pytest.approx(0.9136, abs=5e-5)


# Twelve configurations of three seeds: made-up scores with an effect of each configuration of its
# own.
SEEDED = [
    0.6217, 0.5927, 0.5554, 0.6978, 0.8528, 0.8347, 0.6816, 0.5309, 0.7002, 1.2679, 1.1975, 1.2541,
    0.5520, 0.6500, 0.6465, 1.0235, 0.9804, 1.0112, 0.8247, 0.8307, 0.8713, 1.0790, 1.1570, 1.1632,
    0.8033, 0.7561, 0.7907, 1.0912, 1.0185, 0.9637, 0.8411, 0.9429, 0.7942, 1.4121, 1.3913, 1.4469,
]  # fmt: skip
R_FIGURES = {
    "individual": {
        "coef": [1.510409936484954, 0.148158769469959, 0.316142573293468, 0.549570630909303],
        "ols": [0.3345794548386073, 0.0280931268370717, 0.0458758840200760, 0.0458758840200761],
        "hc3": [0.3679043893385263, 0.0349499156272519, 0.0491861482988107, 0.0491861482988121],
        "cluster": [0.4937911103623489, 0.0508237868722874, 0.0710039898770424, 0.0710039898770413],
        "mixed": [0.5806171447405969, 0.0487518012689816, 0.0796113581003831, 0.0796113581003826],
        "p": [
            8.10122249731363e-05,
            8.95748611286442e-06,
            8.45351573135400e-08,
            2.29350402759957e-13,
        ],
        "r_squared": 0.872414166054784,
        "stds": [0.0901983649759259, 0.0547597368560242],
    },
    "composite": {
        "coef": [1.830667308285804, 0.193972534149098, 0.549570630909303],
        "ols": [0.3582213011982752, 0.0269480190468826, 0.0516015278716393],
        "hc3": [0.4100155255348978, 0.0292436370543611, 0.0539923071084539],
        "cluster": [0.6079561633521726, 0.0426376273418555, 0.0828707050247851],
        "mixed": [0.6175724286970405, 0.0464583024953781, 0.0889608763788382],
        "p": [1.33211029337956e-05, 2.98391851014382e-08, 3.26560678391187e-12],
        "r_squared": 0.833535110161578,
        "stds": [0.1020167959011017, 0.0547597360956742],
    },
}
"""R 4.2.2: summary(lm(score ~ log(b) + log(t) + log(rate))), sqrt(diag(vcovHC(m, "HC3"))) and
sqrt(diag(vcovCL(m, cluster = interaction(b, t, rate)))) of sandwich 3.0.2, and nlme 3.1.162's
lme(random = ~ 1 | g, method = "REML")."""


def seeded():
    configurations = grid([64, 128, 256], [60, 120], ["0.005", "0.01"])
    rows = [
        (c.batch_size, c.num_steps, c.learning_rate, seed, 1.0)
        for c in configurations
        for seed in range(3)
    ]
    return pd.DataFrame(rows, columns=COLUMNS[:5]).assign(score=SEEDED)


@pytest.mark.parametrize(
    ("errors", "tolerance"), [("ols", 1e-8), ("hc3", 1e-8), ("cluster", 1e-8), ("mixed", 3e-5)]
)
def test_errors_of_every_kind_are_those_of_r(errors, tolerance):
    """To 1e-8 where both solve the same equations; the variance of a mixed model is searched for,
    to 1e-5 by both."""
    for name, fit in regress(seeded(), errors=errors).items():
        expected, terms = R_FIGURES[name], pd.DataFrame(fit["terms"]).T
        np.testing.assert_allclose(terms["coef"], expected["coef"], rtol=1e-8)
        np.testing.assert_allclose(terms["std_error"], expected[errors], rtol=tolerance)
        np.testing.assert_allclose(terms["t"], terms["coef"] / terms["std_error"], rtol=1e-12)
        if errors == "ols":
            np.testing.assert_allclose(terms["p"], expected["p"], rtol=1e-8)
            assert fit["r_squared"] == pytest.approx(expected["r_squared"], rel=1e-10)
        if errors == "mixed":
            assert [fit["configuration_std"], fit["residual_std"]] == pytest.approx(
                expected["stds"], rel=3e-5
            )


def test_errors_by_configuration_need_configurations_and_seeds():
    table = seeded()
    few = regress(table[(table["batch_size"] == 64) & (table.index > 2)], errors="cluster")[
        "composite"
    ]
    assert "3 configurations are too few for 3 coefficients" in few["reason"]
    alone = pd.concat(
        [table[table["batch_size"] == 64], table[table["batch_size"] == 256].iloc[:1]]
    )
    assert "leverage is 1" in regress(alone, errors="hc3")["individual"]["reason"]
    single = regress(table[table["seed"] == 0], errors="mixed")["composite"]
    assert "needs a configuration with two seeds" in single["reason"]
    with pytest.raises(ValueError, match="Did you mean 'cluster'"):
        regress(table, errors="clustr")


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1, width=16), min_size=len(FULL), max_size=len(FULL), unique=True))
def test_figures_are_those_of_the_textbook(scores):
    table = table_of(scores)
    b, t, rate = (np.log(table[name].to_numpy(float)) for name in COLUMNS[:3])
    one = np.ones(len(table))
    designs = {
        "individual": np.column_stack([one, b, t, rate]),
        "composite": np.column_stack([one, b + t, rate]),
    }
    found = regress(table)
    for name, design in designs.items():
        coef, error, tvalue, p, r_squared = textbook(np.array(scores), design)
        terms = pd.DataFrame(found[name]["terms"]).T
        # Two factorisations of a design with condition number below 100: about 1e-12 relative; 1e-8
        # leaves room for coefficients that cancel to nearly nothing.
        np.testing.assert_allclose(terms["coef"], coef, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(terms["std_error"], error, rtol=1e-8)
        np.testing.assert_allclose(terms["t"], tvalue, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(terms["p"], p, rtol=1e-8)
        assert found[name]["r_squared"] == pytest.approx(r_squared, abs=1e-10)
        assert found[name]["n"] == len(table)
    assert list(found["individual"]["terms"]) == [
        "intercept",
        "log_batch_size",
        "log_num_steps",
        "log_learning_rate",
    ]
    assert list(found["composite"]["terms"]) == ["intercept", "log_compute", "log_learning_rate"]


def test_every_seed_is_a_row():
    table = table_of(np.linspace(0, 1, len(FULL)) ** 2)
    assert regress(pd.concat([table, table.assign(seed=1)]))["composite"]["n"] == 2 * len(FULL)


@pytest.mark.parametrize(
    ("configurations", "scores", "reason"),
    [
        (
            grid([16, 32], [4], ["1e-3", "2e-3", "4e-3"]),
            [1, 2, 3, 5, 8, 9],
            "log_num_steps is the same in every row",
        ),
        (FULL[:4], [1, 2, 3, 5], "4 rows are too few for 4 coefficients"),
        (FULL, [0.25] * len(FULL), "the score is the same"),
        (
            [c for c in FULL if c.batch_size * 3e-5 > c.learning_rate > c.batch_size * 1.4e-5],
            range(9),
            "individual",
        ),
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
