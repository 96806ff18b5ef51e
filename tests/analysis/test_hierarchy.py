"""The hierarchical model of the scores, against Gaussian conditioning written out, and against
known truths."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info

from raydp.analysis.statistics.noise import (
    SeedNoise,
    common_effect,
    effect_of_secrets,
    secret_covariance,
    shares_of_effect,
)
from raydp.analysis.surface import hierarchical_model, hierarchy
from raydp.analysis.surface.hierarchical_model import interactions
from raydp.analysis.surface.hierarchy import MOST_MODELLED, loss_posterior, score_posterior
from raydp.analysis.surface.scale import LOGARITHM, OWN, log_odds

GRID = list(product([32, 64, 128], [10, 20, 40], [0.005, 0.01, 0.02]))


def means_of(score, *, std=0.02, seeds=2, loss=2.0, grid=GRID):
    """Configuration means with given scores, in the order of the grid."""
    table = pd.DataFrame(grid, columns=["batch_size", "num_steps", "learning_rate"])
    loss = np.broadcast_to(loss, len(grid))
    return table.assign(
        num_seeds=seeds, utility_loss=loss, utility_loss_std=0.01 if seeds > 1 else np.nan, score=score,
        score_std=np.broadcast_to(std, len(grid)) if seeds > 1 else np.nan, model_uri=None,
    )  # fmt: skip


def modelled(means, pool=None):
    """Positions of the configurations that are modelled jointly, and of the rest."""
    rows = hierarchy._Measured.of(means, "score", None, pool, log_base=None, seed=0).rows
    return rows, np.setdiff1d(np.arange(len(means)), rows)


def standardised():
    z = np.log(np.array(GRID, dtype=float))
    return (z - z.mean(axis=0)) / z.std(axis=0)


def test_it_is_gaussian_conditioning(monkeypatch):
    """With known hyperparameters and variances: the mean and the covariance of θ given y, by the
    joint Gaussian."""
    rng = np.random.default_rng(0)
    h = np.log([0.6, 1.0, 2.0, 1.5, 0.5, 0.2, 0.3])  # size, lengths, slopes, effect, unknown error
    monkeypatch.setattr(hierarchical_model, "posterior_draws", lambda *_, **__: np.array([h]))
    monkeypatch.setattr(
        SeedNoise, "draw_ratios", lambda self, rng, num: np.ones((num, len(self.std)))
    )
    score = (
        0.1 * standardised().sum(axis=1) - 1 + rng.normal(0, 0.1, len(GRID))
    )  # negative: not a rate, no logarithm
    got = score_posterior(means_of(score, std=0.05), log_base=None)
    z, unit = standardised(), score.std()
    distance = np.sqrt(5) * np.sqrt((((z[:, None] - z[None]) / np.exp(h[1:4])) ** 2).sum(axis=-1))
    prior = np.exp(2 * h[0]) * (1 + distance + distance**2 / 3) * np.exp(-distance)
    prior += 100 + np.exp(2 * h[4]) * z @ z.T + np.exp(2 * h[5]) * np.eye(len(z))
    errors = np.eye(len(z)) * 0.05**2 / 2 / unit**2
    inverse = np.linalg.inv(prior + errors)
    mean = score.mean() + prior @ inverse @ (score - score.mean())
    covariance = unit**2 * (prior - prior @ inverse @ prior)
    np.testing.assert_allclose(got.own_mean, mean, rtol=1e-6)
    np.testing.assert_allclose(
        got.draws.mean(axis=0), mean, atol=5 * np.sqrt(covariance.max() / len(got.draws))
    )
    np.testing.assert_allclose(np.cov(got.draws.T), covariance, atol=0.1 * covariance.max())


def test_the_shrunk_covariance_is_ledoit_and_wolfs():
    """Their appendix B, in loops, on a sample whose share of the target lies between 0 and 1."""
    rng = np.random.default_rng(1)
    pairs = rng.normal(size=(2, 40)).repeat(2, axis=0)  # two pairs of like configurations
    x = (pairs + 0.5 * rng.normal(size=(4, 40))) * np.array([[1.0], [2.0], [0.5], [1.5]])
    m, k = x.shape
    x0 = x - x.mean(axis=1, keepdims=True)
    s = np.array([[np.mean(x0[i] * x0[j]) for j in range(m)] for i in range(m)])
    r = np.mean(
        [s[i, j] / np.sqrt(s[i, i] * s[j, j]) for i in range(m) for j in range(m) if i != j]
    )
    f = np.array(
        [
            [s[i, j] if i == j else r * np.sqrt(s[i, i] * s[j, j]) for j in range(m)]
            for i in range(m)
        ]
    )
    pi = np.array([[np.mean((x0[i] * x0[j] - s[i, j]) ** 2) for j in range(m)] for i in range(m)])

    def theta(a, i, j):
        return np.mean((x0[a] ** 2 - s[a, a]) * (x0[i] * x0[j] - s[i, j]))

    rho = sum(pi[i, i] for i in range(m))
    for i in range(m):
        for j in range(m):
            if i != j:
                rho += r / 2 * np.sqrt(s[j, j] / s[i, i]) * theta(i, i, j)
                rho += r / 2 * np.sqrt(s[i, i] / s[j, j]) * theta(j, i, j)
    share = max(0.0, min(1.0, (pi.sum() - rho) / ((f - s) ** 2).sum() / k))
    assert 0.01 < share < 0.99
    np.testing.assert_allclose(
        secret_covariance(x), (share * f + (1 - share) * s) / (k - 1), rtol=1e-10
    )


def test_the_common_effect_of_secrets():
    """Without skewness it is Student's t; with it, Hall's transformation maps the draws back onto
    Student's t."""
    rng = np.random.default_rng(0)
    symmetric = np.array([[-3.0, -1.0, 0.0, 1.0, 3.0]])
    drawn = common_effect(np.zeros(1), symmetric, ratio=False, rng=rng, num_draws=40_000)[:, 0]
    error = symmetric.std(ddof=1) / np.sqrt(5)
    np.testing.assert_allclose(
        np.quantile(drawn, [0.025, 0.975]), [-2.776 * error, 2.776 * error], rtol=0.05
    )
    rate = np.array([[0.0, 0.0, 0.1, 0.1, 0.2, 0.9]])
    drawn = common_effect(
        np.array([rate.mean()]), rate, ratio=True, rng=np.random.default_rng(1), num_draws=1000
    )
    student = np.random.default_rng(1).standard_t(5, (1000, 1))
    effects = rate[0] / rate.mean()
    spread = effects.std()
    skewness = ((effects - 1) ** 3).mean() / spread**3
    t = (1 - drawn) / (effects.std(ddof=1) / np.sqrt(6))
    c = skewness / 3 / np.sqrt(6)
    g = t + c * t**2 + c**2 * t**3 / 3 + skewness / 6 / np.sqrt(6)
    positive = drawn > 0
    np.testing.assert_allclose(g[positive], student[positive], atol=1e-9)


@pytest.mark.parametrize("line", [(1.0, 0.0), (1.5, -1.5), (0.5, 0.8)])
def test_interactions_leave_out_what_follows_the_secrets_common_effect(line):
    """A score m whose secrets are m (1 + s e) with a share s on a line in m, and its own remainder
    beside it: the remainder is what is left, but for about a fifth, which five configurations take
    for a common effect."""
    rng = np.random.default_rng(0)
    measured, effect = np.array([0.1, 0.2, 0.4, 0.6, 0.8]), rng.normal(size=40)
    effect -= effect.mean()
    of_effect = np.outer(measured * (line[0] + line[1] * measured), effect)
    by_secret = measured[:, None] + of_effect
    found = shares_of_effect(measured, by_secret)[:, None] * effect_of_secrets(measured, by_secret)
    np.testing.assert_allclose(measured[:, None] * found, of_effect, atol=1e-12)
    np.testing.assert_allclose(interactions(measured, by_secret, ratio=True), 0, atol=1e-12)
    rest = rng.normal(0, 0.02, by_secret.shape)
    rest -= rest.mean(axis=1, keepdims=True)
    left = interactions(measured, by_secret + rest, ratio=True)
    assert np.corrcoef(left.ravel(), rest.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    "scores",
    [[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]], [[1e-300, 3e-300], [2e-300, 0.0]]],
)
def test_shares_of_few_and_tiny_scores_are_finite(scores):
    by_secret = np.array(scores)
    found = shares_of_effect(by_secret.mean(axis=1), by_secret)
    assert np.isfinite(found).all()
    assert (found >= 0).all()


@pytest.mark.parametrize("scale", [OWN, LOGARITHM, log_odds(1.0), log_odds(2.0)])
def test_a_scale_has_its_inverse_and_its_slope(scale):
    values = np.array([1e-6, 0.01, 0.5, 0.9, 0.999])
    np.testing.assert_allclose(scale.back(scale.to(values)), values, rtol=1e-12)
    step = 1e-7 * values
    numeric = (scale.to(values + step) - scale.to(values - step)) / (2 * step)
    np.testing.assert_allclose(scale.slope(values), numeric, rtol=1e-6)


def test_log_odds_of_tiny_rates_are_their_logarithms():
    """Rates of 1e-120 are modelled in a unit of their size, in which the highest rate is 1e120."""
    rates = np.array([0.1, 1.0, 3.0])
    assert log_odds(1e120).to(rates) == pytest.approx(np.log(rates))
    score = 0.3 * np.exp(0.5 * standardised()[:, 2])
    plain, tiny = (
        score_posterior(means_of(unit * score, std=unit * 0.02)) for unit in (1e-6, 1e-120)
    )
    np.testing.assert_allclose(tiny.own_mean * 1e114, plain.own_mean, rtol=0.01)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_signs_of_the_slopes_are_learnt(sign):
    """Noise of one configuration is smoothed away in whatever direction the scores rise."""
    rng = np.random.default_rng(0)
    truth = 0.3 + sign * 0.08 * standardised()[:, 2]
    got = score_posterior(means_of(truth + rng.normal(0, 0.03, len(truth)), std=0.04))
    rates = np.array(GRID)[:, 2]
    by_rate = [got.own_mean[rates == rate].mean() for rate in sorted(set(rates))]
    assert (np.diff(by_rate) * sign > 0.05).all()
    assert np.corrcoef(got.own_mean, truth)[0, 1] > 0.97


@pytest.mark.slow
def test_the_estimate_of_the_lowest_is_less_biased_and_its_interval_covers():
    """64 sweeps whose scores differ by chance alone, the hardest case of the winner's curse: of 27
    equal scores the lowest mean lies two standard errors too low. The interval covers the truth
    about as often as it says."""
    bias, raw, covered = [], [], []
    for seed in range(64):
        rng = np.random.default_rng(seed)
        runs = 0.2 + 0.03 * rng.standard_normal((len(GRID), 2))
        means = means_of(runs.mean(axis=1), std=runs.std(axis=1, ddof=1))
        got = score_posterior(means, seed=seed)
        lowest = int(means["score"].argmin())
        low, high = np.quantile(got.absolute[:, lowest], [0.025, 0.975])
        bias.append(got.own_mean[lowest] - 0.2)
        raw.append(means["score"][lowest] - 0.2)
        covered.append(low <= 0.2 <= high)
    assert np.mean(raw) < -0.035
    assert abs(np.mean(bias)) < 0.4 * abs(np.mean(raw))
    assert (
        np.mean(covered) > 0.87
    )  # 95 % less two standard errors of 64 sweeps and the error of the model


def test_secrets_that_are_easier_for_all_models_do_not_blur_the_comparison():
    rng = np.random.default_rng(0)
    truth = 0.1 * np.exp(0.3 * standardised()[:, 2])
    easy = np.exp(rng.normal(0, 1.5, 30))
    easy /= easy.mean()
    by_secret = truth[:, None] * easy * np.exp(rng.normal(0, 0.05, (len(truth), 30)))
    means = means_of(by_secret.mean(axis=1), std=0.002)
    got = score_posterior(means, by_secret=by_secret)
    apart = got.draws[:, -1] / got.draws[:, 0]
    alone = got.absolute[:, 0]
    assert apart.std() / apart.mean() < 0.05
    assert alone.std() / alone.mean() > 0.2, "the level depends on which secrets were measured"


@pytest.mark.parametrize(
    "score", [np.zeros(27), np.ones(27), np.full(27, 1e-300), np.full(27, 1e97)]
)
@pytest.mark.parametrize("seeds", [1, 2])
def test_equal_scores(score, seeds):
    got = score_posterior(means_of(score, std=0.0, seeds=seeds))
    assert np.isfinite(got.draws).all()
    np.testing.assert_allclose(got.own_mean, score, rtol=1e-2, atol=1e-3 if seeds == 1 else 1e-4)


def test_each_of_the_rest_is_gaussian_conditioning_on_the_modelled_ones_and_its_own_mean(
    monkeypatch,
):
    """With known hyperparameters and variances, by the joint Gaussian of its truth, the modelled
    means and its own."""
    rng = np.random.default_rng(0)
    h = np.log([0.6, 1.0, 2.0, 1.5, 0.5, 0.2, 0.3])
    monkeypatch.setattr(hierarchical_model, "posterior_draws", lambda *_, **__: np.array([h]))
    monkeypatch.setattr(
        SeedNoise, "draw_ratios", lambda self, rng, num: np.ones((num, len(self.std)))
    )
    monkeypatch.setattr(hierarchy, "MOST_MODELLED", 15)
    score = 0.1 * standardised().sum(axis=1) - 1 + rng.normal(0, 0.1, len(GRID))
    means = means_of(score, std=0.05)
    got, (rows, rest) = score_posterior(means), modelled(means)
    assert sorted([*rows, *rest]) == list(range(27))
    unit, level = score[rows].std(), score[rows].mean()
    z = np.log(np.array(GRID, dtype=float))
    z = (z - z[rows].mean(axis=0)) / z[rows].std(axis=0)
    distance = np.sqrt(5) * np.sqrt((((z[:, None] - z[None]) / np.exp(h[1:4])) ** 2).sum(axis=-1))
    prior = np.exp(2 * h[0]) * (1 + distance + distance**2 / 3) * np.exp(-distance)
    variance = 0.05**2 / 2 / unit**2
    prior += 100 * (1 + variance) + np.exp(2 * h[4]) * z @ z.T + np.exp(2 * h[5]) * np.eye(len(z))
    for at in rest:
        seen = np.append(rows, at)
        inverse = np.linalg.inv(prior[np.ix_(seen, seen)] + variance * np.eye(len(seen)))
        mean = level + prior[at, seen] @ inverse @ (score[seen] - level)
        spread = unit * np.sqrt(prior[at, at] - prior[at, seen] @ inverse @ prior[seen, at])
        np.testing.assert_allclose(got.own_mean[at], mean, rtol=1e-5)
        np.testing.assert_allclose(got.draws[:, at].std(), spread, rtol=0.06)
        np.testing.assert_allclose(
            got.draws[:, at].mean(), mean, atol=5 * spread / np.sqrt(len(got.draws))
        )


@pytest.mark.daily("analysis/surface")
def test_rows_beyond_the_model_are_conditioned_on_the_modelled_ones(monkeypatch):
    """About as good an estimate as if all 400 were modelled jointly, and honest intervals; a mean
    of two is worse.

    The ratio of the errors differs between tables by 0.09, also with 700 rows.
    """
    grid = list(product(range(1, 11), range(1, 11), np.arange(1, 5) / 100))
    z = np.log(np.array(grid, dtype=float))
    z = (z - z.mean(axis=0)) / z.std(axis=0)
    covered, squared = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        truth = 0.1 * np.exp(0.3 * z @ np.array([1.0, 0.5, -0.3]) + rng.normal(0, 0.1, len(grid)))
        runs = truth[:, None] * np.exp(rng.normal(0, 0.2, (len(grid), 2)))
        score = runs.mean(axis=1)
        means = means_of(score, std=runs.std(axis=1, ddof=1), grid=grid)
        got, (rows, rest) = score_posterior(means), modelled(means)
        assert len(rows) == MOST_MODELLED
        assert len(rest) == len(grid) - MOST_MODELLED
        low, high = np.quantile(got.absolute[:, rest], [0.025, 0.975], axis=0)
        covered.append(((low <= truth[rest]) & (truth[rest] <= high)).mean())
        with monkeypatch.context() as patch:
            patch.setattr(hierarchy, "MOST_MODELLED", len(grid))
            hierarchy._remembered.cache_clear()
            whole = score_posterior(means)
            hierarchy._remembered.cache_clear()
        estimates = [got.own_mean, whole.own_mean, score]
        squared.append(
            [((np.log(estimate) - np.log(truth))[rest] ** 2).mean() for estimate in estimates]
        )
    # The intervals of one table are wide or narrow together, as far as its 150 modelled means tell
    # the variances.
    assert 0.9 < np.mean(covered) < 0.98
    error, of_whole, of_means = np.sqrt(np.mean(squared, axis=0))
    assert error < 1.1 * of_whole < 0.8 * of_means
    inside = score > np.quantile(score, 0.5)
    monkeypatch.setattr(hierarchy, "MOST_MODELLED", 100)
    of_pool, _ = modelled(means, pool=inside)
    lowest = np.argsort(np.where(inside, score, np.inf))[:50]
    assert set(lowest) <= set(of_pool), "the lowest that may be selected are modelled jointly"
    assert len(of_pool) == 100
    assert (~inside[of_pool]).any(), "and others evenly beside them"


def test_losses_have_their_own_errors():
    loss = 2 + 0.1 * standardised()[:, 1]
    got = loss_posterior(means_of(np.zeros(27), loss=loss))
    assert np.abs(got.own_mean - loss).max() < 0.02
    assert 0.001 < got.draws.std(axis=0).mean() < 0.01, "two seeds with a spread of 0.01, smoothed"


def test_score_posterior_limits_blas_to_one_thread(monkeypatch):
    fit, threads = hierarchy._fitted, list[int]()

    def of_numpy():
        return {
            each["num_threads"] for each in threadpool_info() if "numpy.libs" in each["filepath"]
        }

    def spied(given):
        threads.extend(of_numpy())
        return fit(given)

    monkeypatch.setattr(hierarchy, "_fitted", spied)
    hierarchy._remembered.cache_clear()
    before = of_numpy()
    tables = [means_of(np.linspace(0.1, 0.2 + k, 27), std=0.01) for k in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(score_posterior, tables))) == 4
    assert set(threads) == {1}
    assert of_numpy() == before, "fits side by side leave no limit behind"
