"""What is published of PATE's cost moves no more than its noise pays for."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from raydp.extensions.pate import release_cost
from raydp.extensions.pate.release_cost import Release, release_rdp, smooth_cost
from raydp.extensions.pate.votes_cost import confident_rdp, gnmax_rdp, log_q
from tests.conftest import Answer
from tests.extensions.pate.test_votes_cost import neighbours

SETTINGS = [(0.8, 1.5), (1.5, 2.0), (2.5, 2.0)]
"""σ and order."""


def by_distance(votes: list[list[int]], sigma: float, order: float) -> np.ndarray:
    return smooth_cost(np.array(votes), sigma=sigma, order=order).by_distance


@pytest.mark.parametrize(("sigma", "order"), SETTINGS)
@pytest.mark.parametrize("num_classes", [2, 3])
def test_no_votes_within_a_distance_move_more_than_the_bound(
    sigma: float, order: float, num_classes: int
) -> None:
    """All votes of 9 teachers: how far the cost moves from each by one teacher, against the bound
    at every distance."""
    teachers = 9
    everything = [v for v in product(range(teachers + 1), repeat=num_classes) if sum(v) == teachers]
    cost = {v: smooth_cost(np.array([v]), sigma=sigma, order=order).cost for v in everything}
    moves = {
        v: max(abs(cost[v] - cost[tuple(map(int, w))]) for w in neighbours(np.array(v)))
        for v in everything
    }
    assert max(moves.values()) > 0, "some votes agree enough"
    for here in everything:
        bound = by_distance([list(here)], sigma, order)
        for there in everything:
            distance = sum(abs(a - b) for a, b in zip(here, there, strict=True)) // 2
            assert moves[there] <= bound[distance] * (1 + 1e-9) + 1e-15


def test_local_sensitivities_of_the_public_analysis() -> None:
    """tensorflow/privacy, research/pate_2018/smooth_sensitivity_test.py."""
    right = by_distance([[10, 0, 0]], 0.5, 1.5)
    expected = [3.13503646e-17, 1.60178280e-08, 5.90681786e-03] + [5.99981308] * 8
    np.testing.assert_allclose(right, expected, rtol=1e-8)
    left = by_distance([[1000, 500, 300, 200, 0]], 250.0, 10.0)
    np.testing.assert_allclose(left[[0, 297, 298, 299, 300, 2000]],
                               [0, 0, 2.77693450548e-7, 2.10853979548e-6, 2.73113623988e-6, 2.73113623988e-6],
                               rtol=1e-8)  # fmt: skip


def test_the_cost_is_that_of_the_accounting_where_it_is_used() -> None:
    votes = np.random.default_rng(0).multinomial(250, [0.8, 0.1, 0.1], size=40)
    smooth = smooth_cost(votes, sigma=30, order=12.0)
    assert smooth.cost == pytest.approx(
        gnmax_rdp(log_q(votes, 30), 30, np.array([12.0])).sum(), rel=1e-9
    )
    checked = smooth_cost(votes, sigma=30, order=12.0, threshold=180, sigma1=30)
    check = confident_rdp(votes.max(axis=1), np.zeros((40, 1)), 180, 30, np.array([12.0])).sum()
    assert checked.cost == pytest.approx(smooth.cost + check, rel=1e-9)


@pytest.mark.parametrize("threshold", [3.0, 6.5])
def test_the_check_moves_no_more_than_its_bound(threshold: float) -> None:
    """Of 10 teachers, by brute force over the largest count."""
    order, sigma1, teachers = 4.0, 1.5, 10
    alone = confident_rdp(
        np.arange(teachers + 1), np.zeros((teachers + 1, 1)), threshold, sigma1, np.array([order])
    )
    for largest in range(teachers + 1):
        found = release_cost._check_sensitivities(np.array([largest]), alone[:, 0])
        for distance in range(teachers + 1):
            near = [c for c in range(teachers + 1) if abs(c - largest) <= distance]
            steps = [
                abs(alone[c, 0] - alone[d, 0])
                for c in near
                for d in (c - 1, c + 1)
                if 0 <= d <= teachers
            ]
            assert found[distance] == pytest.approx(max(steps), rel=1e-12)


def test_smooth_sensitivity_falls_by_at_most_its_rate() -> None:
    """By e^β for a neighbour, also where several queries change at once: what Theorem 23 rests
    on."""
    rng, beta = np.random.default_rng(1), 0.1
    for _ in range(30):
        here = rng.multinomial(20, [0.7, 0.2, 0.1], size=3)
        there = np.array([list(neighbours(row))[rng.integers(2)] for row in here])
        a, b = (smooth_cost(v, sigma=4.0, order=3.0) for v in (here, there))
        assert a.sensitivity(beta) <= math.exp(beta) * b.sensitivity(beta) * (1 + 1e-9)
        assert abs(a.cost - b.cost) <= a.sensitivity(beta) * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [4.83, 16.5])
def test_few_teachers_of_many_classes_are_smooth_too(sigma: float) -> None:
    """The way to where votes matter may be as long as there are teachers."""
    order, beta = (2.41, 0.1) if sigma < 10 else (1.68, 0.1)
    everything = [v for v in product(range(5), repeat=4) if sum(v) == 4]
    found = {
        v: smooth_cost(np.array([v]), sigma=sigma, order=order).sensitivity(beta)
        for v in everything
    }
    for here in everything:
        for there in neighbours(np.array(here)):
            assert found[here] <= math.exp(beta) * found[tuple(map(int, there))] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("sigma", "order"), [(3.0, 85.0), (0.12, 4.58), (1.0, 30.0), (10.0, 300.0), (0.01, 10.0)]
)
def test_probabilities_that_no_double_holds_do_not_hide_a_leap(sigma: float, order: float) -> None:
    """Near q0 everything is below 1e-308.

    A sensitivity of 0 would publish the cost without noise; it is not smooth.
    """
    with pytest.raises(ValueError, match="condition C6"):
        smooth_cost(np.array([[184, 16]]), sigma=sigma, order=order)


@pytest.mark.parametrize("order", [1.5, 5.0, 20.0, 50.0])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.45, 0.49])
@pytest.mark.parametrize("noise", [2.0, 20.0])
def test_no_two_gaussians_that_may_be_shown_diverge_by_more_than_the_price(
    order: float, share: float, noise: float
) -> None:
    """Exact divergences by quadrature; the price of Papernot et al.'s Theorem 23 is exceeded up to
    16 times."""
    release = Release(order=order, beta=share / order, noise_multiplier=noise)
    price, seen = release_rdp(release), 0.0
    for ratio in (-release.beta, -release.beta / 2, 0.0, release.beta):
        here, there = noise, noise * math.exp(ratio)
        shift = min(1.0, math.exp(ratio))
        variance = order * there**2 + (1 - order) * here**2
        centre, width = (1 - order) * shift * here**2 / variance, here * there / math.sqrt(variance)
        x = np.linspace(
            centre - 12 * width, centre + 12 * width, 200_001
        )  # the integrand is a Gaussian
        log_p, log_q = (stats.norm.logpdf(x, m, s) for m, s in ((0.0, here), (shift, there)))
        log_density = order * log_p + (1 - order) * log_q
        exact = (logsumexp(log_density) + math.log(x[1] - x[0])) / (order - 1)
        assert exact <= price * (1 + 1e-6)
        seen = max(seen, exact)
    assert seen >= price * (1 - 1e-3), "the price is that of the worst of them"


def test_conditions_are_those_that_the_public_analysis_finds() -> None:
    with pytest.raises(
        ValueError, match=r"sigma must be such that the cost is smooth, got 20 .* condition C6"
    ):
        smooth_cost(np.array([[250] + [0] * 9]), sigma=20, order=25.0)
    smooth_cost(np.array([[250] + [0] * 9]), sigma=30, order=25.0)


def test_the_published_cost_has_noise_and_the_price_of_publishing() -> None:
    votes = np.random.default_rng(0).multinomial(250, [0.9, 0.1], size=500)
    smooth = smooth_cost(votes, sigma=40, order=10.0)
    release = Release(order=10.0, beta=0.04, noise_multiplier=15.0)
    std = smooth.sensitivity(0.04) * 15
    price = release_rdp(release)
    for normal in (-0.1, 0.0, 2.0):
        shown = smooth.published(release, normal) - price
        assert 0 <= shown - (smooth.cost + normal * std) < 1e-3, "in thousandths, rounded up"
        assert shown * 1000 == pytest.approx(round(shown * 1000), abs=1e-6)
    assert smooth.published(release, -1e9) == price, "no cost is below 0"
    suggested = smooth.suggestion()
    two = 2 * smooth.sensitivity(suggested.beta) * suggested.noise_multiplier
    assert release_rdp(suggested) + two <= price + 2 * std


@pytest.mark.parametrize(
    "values", [(1.0, 0.1, 5.0), (10.0, 0.05, 5.0), (10.0, 0.0, 5.0), (10.0, 0.04, 0.0)]
)
def test_a_release_that_has_no_finite_cost_is_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="publish must be an order above 1"):
        Release(order=values[0], beta=values[1], noise_multiplier=values[2])


@pytest.mark.slow
def test_the_command_publishes(raydp: Callable[..., Answer], tmp_path: Path) -> None:
    votes = np.random.default_rng(0).multinomial(250, [0.9, 0.1], size=500)
    np.savetxt(tmp_path / "votes.csv", votes, fmt="%d", delimiter=",")
    given = ("pate", "votes.csv", "--sigma", 40, "--delta", 1e-5)
    suggested = raydp(*given, "--publish", "suggest", "--json").json()["suggestion"]
    assert suggested["beta"] < 1 / (2 * suggested["order"])
    shown = [
        raydp(*given, "--publish", "10,0.04,15", "--json").json()["epsilon_sanitised"]
        for _ in range(32)
    ]
    # Half of the noise takes the cost below 0, which is shown as 0; all but two draws do so once in
    # 8 million times.
    assert len(set(shown)) > 3, "fresh noise"
    assert (
        "to publish, an estimate with noise, which may lie below the true one"
        in raydp(*given, "--publish", "10,0.04,15").out
    )
    assert (
        "--publish must be 'suggest' or ORDER,BETA,NOISE, got 'x'"
        in raydp(*given, "--publish", "x").err
    )
