"""Who may have the lowest score: the set's coverage, and the probabilities."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from raydp.analysis import configuration_means, select
from raydp.analysis.selection.contenders import contenders
from raydp.analysis.statistics.noise import SeedNoise, combined_degrees, secret_errors, upper_limit

COLUMNS = ["batch_size", "num_steps", "learning_rate", "seed", "utility_loss", "score"]


def planted(rng, expectations, stds, seeds):
    """A points table of configurations with known expected scores and standard deviations over
    seeds."""
    rows = [
        (64, 1 + k, 0.1, seed, 1.0, mean + std * rng.standard_normal())
        for k, (mean, std) in enumerate(zip(expectations, stds, strict=True))
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def compared(table, selected=0, **options):
    means = configuration_means(table)
    return contenders(means, np.ones(len(means), dtype=np.bool_), selected, **options)


@pytest.mark.daily("analysis")
@pytest.mark.parametrize("seeds", [2, 4])
@pytest.mark.parametrize("spread", [0.0, 0.7], ids=["one variance", "variances differ"])
def test_the_set_holds_the_best_in_95_of_100_tables(seeds, spread):
    """300 tables each: at a coverage of 0.95 fewer than 0.91 has a probability of 0.2 %."""
    rng = np.random.default_rng(seeds)
    found = []
    for _ in range(300):
        expectations = np.concatenate([[0.0], rng.uniform(0, 1, 5)])
        stds = 0.3 * np.exp(spread * rng.standard_normal(6))
        rows = compared(planted(rng, expectations, stds, seeds), num_draws=1000).rows
        found.append(next(row["indistinguishable"] for row in rows if row["num_steps"] == 1))
    assert np.mean(found) >= 0.91


@pytest.mark.daily("analysis")
def test_a_set_that_ignored_the_noise_would_miss_the_best():
    """The check above can fail: taking the lowest mean alone holds the best in far fewer tables."""
    rng = np.random.default_rng(0)
    lowest = []
    for _ in range(300):
        expectations = np.concatenate([[0.0], rng.uniform(0, 1, 5)])
        lowest.append(
            compared(planted(rng, expectations, np.full(6, 0.3), 2), num_draws=200).rows[0][
                "num_steps"
            ]
            == 1
        )
    assert np.mean(lowest) < 0.8


def test_clear_differences_leave_one_and_more_seeds_shrink_the_set():
    rng = np.random.default_rng(3)
    clear = compared(planted(rng, [0.0, 5.0, 6.0], [0.1] * 3, 3))
    assert clear.verdict == "supported"
    assert [row["indistinguishable"] for row in clear.rows] == [True, False, False]
    assert clear.rows[0]["probability"] > 0.999
    sizes = []
    for seeds in (2, 8, 32):
        tables = [planted(rng, np.linspace(0, 1, 6), [0.3] * 6, seeds) for _ in range(20)]
        sizes.append(
            np.mean(
                [
                    sum(r["indistinguishable"] for r in compared(t, num_draws=1000).rows)
                    for t in tables
                ]
            )
        )
    assert sizes[0] > sizes[1] > sizes[2]


def test_the_probabilities_are_those_of_two_independent_means():
    """P(i is lowest) of two means: Gaussian in their difference, with 200 seeds each."""
    from scipy.stats import norm

    table = planted(np.random.default_rng(0), [0.0, 0.05], [0.4, 0.4], 200)
    rows = compared(table, num_draws=200_000).rows
    means = configuration_means(table)
    error = np.sqrt((means["score_std"] ** 2).mean() * 2 / 200)
    expected = norm.cdf((rows[1]["score"] - rows[0]["score"]) / error)
    assert rows[0]["probability"] == pytest.approx(expected, abs=5 * 0.5 / np.sqrt(200_000) + 0.002)


def test_secrets_that_do_not_tell_two_apart_leave_it_undecided():
    table = planted(np.random.default_rng(1), [0.5, 0.52], [0.001, 0.001], 3)
    by_secret = np.random.default_rng(2).uniform(0, 1, (2, 6))
    found = compared(table, by_secret=by_secret)
    assert (found.verdict, found.levels) == ("undecided", ("seeds", "secrets"))
    alone = compared(table[table["seed"] == 0], by_secret=by_secret)
    assert (alone.verdict, alone.levels) == ("unknown", ()), (
        "secrets of one run do not show what another run would give"
    )
    assert [row["probability"] for row in alone.rows] == [None, None]


def test_a_secret_that_all_know_does_not_blur_the_comparison():
    """Paired: the configurations differ by the same amount on every secret."""
    table = planted(np.random.default_rng(1), [0.5, 0.6], [0.001, 0.001], 3)
    secrets = np.random.default_rng(2).uniform(0, 1, 6)
    assert compared(table, by_secret=np.stack([secrets, secrets + 0.1])).verdict == "supported"


def test_errors_over_secrets_are_students_with_the_covariance_of_a_mean_over_them():
    """12 secrets, so 11 degrees of freedom: variance 11/9 of s²/k; 100,000 draws err by 1 %."""
    values = np.random.default_rng(0).gamma(1, 1, (3, 12))
    drawn, covariance = secret_errors(values, np.random.default_rng(1), 100_000)
    assert covariance == pytest.approx(np.cov(values, ddof=1) / 12)
    assert np.cov(drawn, rowvar=False) == pytest.approx(covariance * 11 / 9, rel=0.06, abs=0.005)
    assert np.abs(drawn.mean(axis=0)).max() < 0.01


def test_errors_over_secrets_by_hand():
    """1, 2, 3 and 6 have mean 3 and squares of 14 about it: 14 / 3 over secrets, over 4 secrets 7 /
    6."""
    _, covariance = secret_errors(
        np.array([[1.0, 2, 3, 6], [2.0, 4, 6, 12]]), np.random.default_rng(0), 1
    )
    assert covariance == pytest.approx(np.array([[7 / 6, 14 / 6], [14 / 6, 28 / 6]]), rel=1e-12)


def test_a_bound_over_secrets_by_hand():
    """Student's t with 3 degrees of freedom at 95 %: 2.353363 of sqrt(7 / 6). There is one seed."""
    values = np.array([[1.0, 2, 3, 6], [2.0, 4, 6, 12]])
    table = planted(np.random.default_rng(0), [3.0, 6.0], [0.0, 0.0], 1).assign(run_id=["a", "b"])
    rows = [
        (run, "x", f"s{i}", value)
        for run, row in zip("ab", values, strict=True)
        for i, value in enumerate(row)
    ]
    secrets = pd.DataFrame(rows, columns=["run_id", "score", "secret_id", "value"])
    limit, text = upper_limit(table, configuration_means(table), (secrets, "x"))
    assert limit == pytest.approx(
        np.array([3.0, 6.0]) + 2.353363 * np.sqrt([7 / 6, 28 / 6]), rel=1e-6
    )
    assert text == "a 95 % upper limit of the mean score over secrets"


@pytest.mark.parametrize(
    ("first", "degrees", "second", "degrees_of_second", "expected"),
    [(3, 5, 4, 7, 11.84353), (1, 5, 1, 5, 10), (0, np.inf, 2, 3, 3), (2, 4, 0, 9, 4)],
)
def test_degrees_of_two_errors_together_by_hand(
    first, degrees, second, degrees_of_second, expected
):
    """Errors 3 and 4 have 9/25 and 16/25 of the variance: 1 / (0.36² / 5 + 0.64² / 7)."""
    arrays = (np.array([float(value)]) for value in (first, degrees, second))
    assert combined_degrees(*arrays, degrees_of_second) == pytest.approx([expected], rel=1e-5)


def holds_the_first(rows):
    return next(row["indistinguishable"] for row in rows if row["num_steps"] == 1)


@pytest.mark.daily("analysis")
@pytest.mark.parametrize("num_secrets", [2, 3, 5, 13])
def test_few_secrets_still_hold_the_lowest(num_secrets):
    """Five that tie, two like seeds, 500 tables: at a coverage of 0.95 fewer than 0.92 has a
    probability of 0.1 %."""
    rng = np.random.default_rng(num_secrets)
    held = []
    for _ in range(500):
        values = rng.normal(size=(5, num_secrets))
        table = planted(rng, values.mean(axis=1), [1e-6] * 5, 2)
        held.append(holds_the_first(compared(table, by_secret=values, num_draws=10).rows))
    assert np.mean(held) >= 0.92


@pytest.mark.daily("analysis")
@pytest.mark.parametrize("num_secrets", [2, 13])
def test_errors_over_seeds_and_secrets_together(num_secrets):
    """Six that tie, two seeds, a spread over each: as above, with a part of the secrets' effects in
    common."""
    rng = np.random.default_rng(num_secrets)
    held = []
    for _ in range(500):
        secrets = rng.normal(size=num_secrets) + 0.5 * rng.normal(size=(6, num_secrets))
        runs = 0.5 * rng.normal(size=(6, 2))
        rows = [
            (64, 1 + k, 0.1, s, 1.0, secrets[k].mean() + runs[k, s])
            for k in range(6)
            for s in range(2)
        ]
        by_secret = secrets + runs.mean(axis=1, keepdims=True)
        held.append(
            holds_the_first(compared(pd.DataFrame(rows, columns=COLUMNS), by_secret=by_secret).rows)
        )
    assert np.mean(held) >= 0.92


def test_the_critical_value_is_students_over_the_comparisons():
    """Two secrets, three configurations: 5 % / 2 at one degree of freedom is tan(0.475 pi) = 12.71
    standard errors."""
    secrets = np.array([0.0, 1.0])
    for excess, inside in ((12.6, True), (12.8, False)):
        by_secret = np.stack(
            [np.zeros(2), excess + 2 * secrets - 1, 500 + secrets]
        )  # error of the difference: 1
        table = planted(np.random.default_rng(0), by_secret.mean(axis=1), [1e-6] * 3, 2)
        assert [r["indistinguishable"] for r in compared(table, by_secret=by_secret).rows] == [
            True,
            inside,
            False,
        ]


def test_one_secret_says_nothing():
    table = planted(np.random.default_rng(0), [0.5, 0.6], [0.0, 0.0], 1)
    assert compared(table, by_secret=np.array([[0.5], [0.6]])).verdict == "unknown"


@pytest.mark.daily("analysis")
def test_of_a_large_pool_the_selected_one_is_compared_too():
    """400 configurations that tie: one that was selected for other reasons is hardly ever called
    contradicted."""
    verdicts = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        table = planted(rng, [0.0] * 400, [1.0] * 400, 2)
        means = configuration_means(table)
        pool = np.ones(len(means), dtype=np.bool_)
        verdicts.append(contenders(means, pool, int(rng.integers(400)), num_draws=1000).verdict)
    assert verdicts.count("contradicted") <= 4  # at 5 %, 5 and more of 20 in 0.3 %
    assert len(contenders(means, pool, 7, num_draws=100).rows) == 300


@pytest.mark.parametrize("degrees", [3.0, 8.0])
def test_the_prior_of_the_variances_is_found(degrees):
    """4,000 variances drawn from the model: scale and degrees of freedom come back (Smyth 2004,
    section 6.2)."""
    rng = np.random.default_rng(0)
    variance = degrees * 0.04 / rng.chisquare(degrees, 4000)
    seeds = np.full(4000, 3)
    std = np.sqrt(variance * rng.chisquare(2, 4000) / 2)
    noise = SeedNoise.of(std, seeds)
    assert noise.degrees[0] - 2 == pytest.approx(degrees, rel=0.15)
    weight = (noise.degrees[0] - 2) / noise.degrees[0]
    scale = (noise.std**2 - (1 - weight) * std**2) / weight
    assert scale == pytest.approx(np.full(4000, 0.04), rel=0.05)


def test_equal_variances_are_pooled_and_one_seed_borrows_them():
    noise = SeedNoise.of(np.array([0.2, 0.2, 0.2, np.nan]), np.array([2, 2, 2, 1]))
    assert noise.std == pytest.approx([0.2] * 4)
    assert noise.degrees.tolist() == [3] * 4
    assert SeedNoise.of(np.array([np.nan, np.nan]), np.array([1, 1])) is None


def test_bounds_on_the_score_count_the_noise():
    """Student's t with 3 degrees of freedom at 95 %: 2.353 standard errors."""
    table = planted(np.random.default_rng(0), [0.1, 0.2, 0.9], [0.05] * 3, 2)
    limit, text = upper_limit(table, configuration_means(table), None)
    means = configuration_means(table)
    pooled = np.sqrt((means["score_std"] ** 2).mean())
    assert limit == pytest.approx(means["score"] + 2.353363 * pooled / np.sqrt(2), rel=1e-5)
    assert "over seeds" in text
    bound = float(np.sort(limit)[1])
    assert len(select(table, rule="best-utility", max_score=bound).steps[0].survivors) == 2
    with pytest.raises(ValueError, match="max_score must be at least"):
        select(table, max_score=float(limit.min()) - 1e-9)


def test_any_column_can_be_bounded():
    table = planted(np.random.default_rng(0), [0.1, 0.2, 0.9], [0.05] * 3, 2).assign(epsilon=8.0)
    table["gpu_hours"] = table["num_steps"] / 2
    steps = select(table, at_most={"epsilon": 8, "gpu_hours": 1.0, "compute": 64}).steps
    assert [(step.name, len(step.survivors)) for step in steps[:3]] == [
        ("epsilon bound", 3), ("gpu_hours bound", 2), ("compute bound", 1),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="Did you mean 'epsilon'") as refused:
        select(table, at_most={"epsilom": 1})
    assert "gpu_hours" not in str(refused.value), "a column of the user's own is not shown"
    with pytest.raises(ValueError, match="at_most epsilon must be at least 8"):
        select(table, at_most={"epsilon": 1})
    with pytest.raises(ValueError, match="must leave a configuration"):
        select(table.assign(other=-table["num_steps"]), at_most={"gpu_hours": 0.5, "other": -3})
