"""The surface through what was measured: against the textbook's formula, its priors, and how far
its intervals hold."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raydp.extensions.prediction.surface import MOST_ROWS, SLOPES, Surface, _kernel
from raydp.search_spaces import grid
from tests.marks import slow_after

CONFIGURATIONS = grid([64, 128, 256, 512], [30, 60, 120, 240], ["5e-3", "1e-2", "2e-2", "4e-2"])


def surface_of(rng, noise=0.1):
    """A random smooth score: the paper's slopes, a bend, and noise over seeds."""
    slopes = np.array([0.13, 0.37, 0.51]) * np.exp(0.3 * rng.standard_normal(3))
    z = np.log([[c.batch_size, c.num_steps, c.learning_rate] for c in CONFIGURATIONS])
    centred = z - z.mean(axis=0)
    expected = centred @ slopes + 0.15 * rng.standard_normal() * centred[:, 2] ** 2
    table = pd.DataFrame(
        {
            name: [getattr(c, name) for c in CONFIGURATIONS]
            for name in ("batch_size", "num_steps", "learning_rate")
        }
    )
    return table.assign(
        expected=expected, score=expected + noise * rng.standard_normal(len(expected))
    )


def test_one_draw_of_the_hyperparameters_is_the_textbooks_posterior():
    """Rasmussen and Williams 2006, equations 2.23 and 2.24, on the standardised figures."""
    table = surface_of(np.random.default_rng(0)).iloc[::3].reset_index(drop=True)
    variance = np.full(len(table), 0.01)
    fitted = Surface.fit(table, "score", variance)
    one = Surface(**{**vars(fitted), "hyperparameters": fitted.hyperparameters[:1]})
    others = surface_of(np.random.default_rng(0)).iloc[1::5]
    mean, std = one.predict(others)

    def standard(t):
        return (
            np.log(t[["batch_size", "num_steps", "learning_rate"]].to_numpy(float)) - one.centre
        ) / one.spread

    x, z, h = standard(table), standard(others), fitted.hyperparameters[0]
    y = (table["score"].to_numpy() - one.level) / one.unit - SLOPES["score"] * x.sum(axis=1)
    inverse = np.linalg.inv(_kernel(x, x, h) + np.diag(np.full(len(x), 0.01 / one.unit**2 + 1e-8)))
    expected = SLOPES["score"] * z.sum(axis=1) + _kernel(z, x, h) @ inverse @ y
    spread = np.sqrt(np.diag(_kernel(z, z, h) - _kernel(z, x, h) @ inverse @ _kernel(x, z, h)))
    np.testing.assert_allclose(mean, one.level + one.unit * expected, rtol=1e-7)
    np.testing.assert_allclose(std, one.unit * spread, rtol=1e-5)
    drawn = one.draw(others, 20_000, seed=0)
    assert drawn.mean(axis=0) == pytest.approx(mean, abs=5 * std.max() / np.sqrt(20_000))
    assert drawn.std(axis=0) == pytest.approx(std, rel=0.03)


@pytest.mark.parametrize("measured", slow_after(1, [6, 12, 24]))
def test_intervals_hold_unmeasured_values_at_the_stated_rate(measured):
    """25 random surfaces, the configurations that did not run: 95 % intervals hold at least 90 % of
    the expectations (surfaces share errors: the standard error over 25 surfaces is about 2 %), and
    are far narrower than the scores."""
    rng = np.random.default_rng(measured)
    held, widths = [], []
    for k in range(25):
        table = surface_of(rng)
        order = rng.permutation(len(table))
        ran, left = (
            table.iloc[order[:measured]].reset_index(drop=True),
            table.iloc[order[measured:]],
        )
        mean, std = Surface.fit(ran, "score", np.full(measured, 0.01), seed=k).predict(left)
        held.append(np.mean(np.abs(left["expected"] - mean) <= 1.96 * std))
        widths.append(std.mean() / table["expected"].std())
    assert np.mean(held) >= 0.9
    assert np.mean(widths) < {6: 1.0, 12: 0.6, 24: 0.4}[measured]


def test_the_prior_expects_more_leakage_with_more_of_each():
    """One configuration measured: the score is expected to rise and the loss to fall away from
    it."""
    one = pd.DataFrame(
        {"batch_size": [64], "num_steps": [60], "learning_rate": [0.01], "score": [0.5]}
    )
    more = pd.DataFrame({"batch_size": [128], "num_steps": [120], "learning_rate": [0.02]})
    score, _ = Surface.fit(one, "score", None).predict(more)
    loss, _ = Surface.fit(one.assign(utility_loss=2.0), "utility_loss", None).predict(more)
    assert score[0] > 0.5
    assert loss[0] < 2.0


def test_noise_that_is_not_known_is_learnt():
    table = surface_of(np.random.default_rng(3), noise=0.4)
    quiet = surface_of(np.random.default_rng(3), noise=0.01)
    noisy_draws, quiet_draws = (
        Surface.fit(t, "score", None).hyperparameters[:, 4] for t in (table, quiet)
    )
    assert np.exp(noisy_draws).mean() > 3 * np.exp(quiet_draws).mean()


def test_too_many_are_refused():
    table = pd.DataFrame(
        {
            "batch_size": 1,
            "num_steps": np.arange(1, MOST_ROWS + 2),
            "learning_rate": 0.1,
            "score": 1.0,
        }
    )
    with pytest.raises(ValueError, match="at most 1500 configurations"):
        Surface.fit(table, "score", None)
