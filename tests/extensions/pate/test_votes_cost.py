"""The cost of PATE's answers against exact divergences and the numbers of the paper's own
analysis."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from raydp.extensions.pate.votes_cost import (
    GRID,
    confident_rdp,
    gnmax_rdp,
    independent_rdp,
    log_q,
    pate_cost,
)
from raydp.spec.reading import load_spec
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.results import RunResult
from tests.builders.plans import plan_of_runs, record_of
from tests.builders.specs import small_spec
from tests.conftest import Answer

Array = np.ndarray


def answers(votes: Array, sigma: float) -> Array:
    """[classes] exact probabilities of GNMax's answers, by quadrature over the winner's noisy
    count."""
    x = np.linspace(votes.min() - 9 * sigma, votes.max() + 9 * sigma, 20_001)
    below = norm.cdf((x[:, None] - votes) / sigma)
    density = norm.pdf((x[:, None] - votes) / sigma) / sigma
    others = np.stack([np.delete(below, i, axis=1).prod(axis=1) for i in range(len(votes))], axis=1)
    return np.trapezoid(density * others, x, axis=0)


def outcomes(votes: Array, sigma: float, check: tuple[float, float] | None) -> Array:
    """The same with the outcome of no answer where there is a check (threshold, sigma1)."""
    found = answers(votes, sigma)
    if check is None:
        return found
    threshold, sigma1 = check
    passes = norm.sf((threshold - votes.max()) / sigma1)
    return np.append(passes * found, norm.cdf((threshold - votes.max()) / sigma1))


def neighbours(votes: Array) -> Iterator[Array]:
    """All votes that differ by one teacher's."""
    for a in range(len(votes)):
        for b in range(len(votes)):
            if a != b and votes[a]:
                other = votes.copy()
                other[a] -= 1
                other[b] += 1
                yield other


@pytest.mark.slow
@settings(max_examples=60)
@given(
    votes=st.lists(st.integers(0, 60), min_size=2, max_size=4).filter(any),
    sigma=st.floats(1, 30),
    check=st.none() | st.tuples(st.floats(0, 80), st.floats(1, 30)),
)
def test_no_exact_divergence_is_above_the_bound(
    votes: list[int], sigma: float, check: tuple[float, float] | None
) -> None:
    here = np.array(votes)
    bound = gnmax_rdp(log_q(here[None], sigma), sigma)
    if check is not None:
        bound = confident_rdp(here.max(keepdims=True), bound, *check)
    p = outcomes(here, sigma, check)
    for other in neighbours(here):
        q = outcomes(other, sigma, check)
        seen = (p > 1e-9) & (q > 1e-9)  # what quadrature can tell apart; the rest only adds
        log_p, log_q_there = np.log(p[seen])[:, None], np.log(q[seen])[:, None]
        exact = logsumexp(GRID * log_p + (1 - GRID) * log_q_there, axis=0) / (GRID - 1)
        assert (exact <= bound[0] * (1 + 1e-6) + 1e-9 + 1e-7 / (GRID - 1)).all()


@settings(max_examples=30)
@given(
    votes=st.lists(st.integers(0, 300), min_size=2, max_size=10).filter(any), sigma=st.floats(1, 50)
)
def test_q_is_at_least_the_probability_of_another_answer(votes: list[int], sigma: float) -> None:
    here = np.array(votes)
    others = np.delete(answers(here, sigma), here.argmax()).sum()
    assert others <= math.exp(log_q(here[None], sigma)[0]) * (1 + 1e-6) + 1e-9


AT = np.searchsorted(GRID, [12.0, 16.0, 32.0])
QUERIES = [
    (
        [200, 30, 20],
        40.0,
        -6.185839427144275,
        (0.0008206595678432582, 0.0010211903240361405, 0.0032355447469009633),
    ),
    ([100, 90, 60], 40.0, -0.4054651081081643, (0.0075, 0.01, 0.02)),
    (
        [240, 10, 0],
        15.0,
        -62.08334406769569,
        (1.087179981108124e-23, 5.423519301983709e-22, 5.623700100268293e-15),
    ),
    ([250, 0], 100.0, -3.255800842482071, (0.0012, 0.0016, 0.0032)),
]
"""Counts, σ, log q and divergences at the orders AT, printed by tensorflow/privacy,
research/pate_2018/core.py."""
CHECKS = [
    (
        200,
        180.0,
        30.0,
        -0.29101099055230867,
        (0.006666666666666666, 0.008888888888888887, 0.017777777777777774),
    ),
    (
        100,
        180.0,
        30.0,
        -5.564791115820011,
        (0.0012826179509213176, 0.001541652275257364, 0.004016281200598478),
    ),
    (
        250,
        100.0,
        20.0,
        -3.1908916729109355e-14,
        (2.371521478857395e-13, 8.145951585192669e-13, 2.1693575963676957e-10),
    ),
]
"""Largest count, threshold, σ1, log of the probability to pass and divergences, by the same."""


@pytest.mark.parametrize(("votes", "sigma", "logq", "divergences"), QUERIES)
def test_numbers_of_the_public_analysis(
    votes: list[int], sigma: float, logq: float, divergences: tuple[float, ...]
) -> None:
    found = log_q(np.array([votes]), sigma)
    assert found[0] == pytest.approx(logq, rel=1e-12)
    np.testing.assert_allclose(gnmax_rdp(found, sigma)[0, AT], divergences, rtol=1e-9)


@pytest.mark.parametrize(("largest", "threshold", "sigma1", "passes", "divergences"), CHECKS)
def test_the_exact_check_is_below_the_public_analysis(
    largest: int, threshold: float, sigma1: float, passes: float, divergences: tuple[float, ...]
) -> None:
    assert norm.logsf((threshold - largest) / sigma1) == pytest.approx(passes, rel=1e-12)
    exact = confident_rdp(np.array([largest]), np.zeros((1, len(GRID))), threshold, sigma1)[0]
    assert (exact[AT] <= np.array(divergences)).all()


def test_the_reference_is_the_expected_cost_and_its_conversion() -> None:
    votes = np.array([[200, 30, 20], [100, 90, 60], [240, 10, 0]])
    plain = pate_cost(votes, sigma=40, delta=1e-5)
    curve = gnmax_rdp(log_q(votes, 40), 40).sum(0)
    assert plain.reference.epsilon == pytest.approx(
        (curve + math.log(1e5) / (GRID - 1)).min(), rel=1e-12
    )
    assert plain.expected_answers == 3
    confident = pate_cost(votes, sigma=40, delta=1e-5, threshold=180, sigma1=30)
    passes = norm.sf((180 - votes.max(axis=1)) / 30)
    assert confident.expected_answers == pytest.approx(passes.sum(), rel=1e-12)
    assert confident.reference.epsilon == pytest.approx(0.3063913171221641, rel=1e-9)


def test_more_noise_costs_less_and_agreement_costs_little() -> None:
    votes = np.array([[120, 100, 30]] * 50)
    costs = [
        pate_cost(votes, sigma=sigma, delta=1e-6).dependent.epsilon for sigma in (10, 20, 40, 80)
    ]
    assert costs == sorted(costs, reverse=True)
    unanimous = pate_cost(np.array([[250, 0, 0]] * 1000), sigma=25, delta=1e-6)
    assert unanimous.dependent.epsilon < 0.2 * unanimous.independent.epsilon
    assert unanimous.dependent.epsilon <= unanimous.reference.epsilon


@pytest.mark.parametrize("votes", [[0, 0], [51, 50], [1, 0], [500_000, 499_999], [1_000_000, 0]])
@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e9])
@pytest.mark.parametrize("threshold", [None, -1e9, 0.0, 50.0, 1e9])
def test_extreme_arguments_give_a_finite_bound_below_that_of_any_votes(
    votes: list[int], noise: float, threshold: float | None
) -> None:
    check = {} if threshold is None else {"threshold": threshold, "sigma1": noise}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cost = pate_cost(np.array([votes]), sigma=noise, delta=1e-6, **check)
    assert 0 <= cost.dependent.epsilon <= cost.independent.epsilon < math.inf
    if noise == 1e-3 and abs(votes[0] - votes[1]) <= 1 and (threshold is None or threshold < 0):
        assert cost.dependent.epsilon > 1e3, "a neighbour flips the answer"


def test_queries_that_are_hardly_ever_answered_cost_little() -> None:
    votes = np.array([[90, 85, 75]] * 100)
    always = pate_cost(votes, sigma=30, delta=1e-6).dependent.epsilon
    seldom = pate_cost(votes, sigma=30, delta=1e-6, threshold=200, sigma1=20).dependent.epsilon
    assert seldom < 0.2 * always


def test_the_data_independent_cost_is_that_of_two_counts_and_a_maximum() -> None:
    np.testing.assert_allclose(independent_rdp(5.0), GRID * 2 / (2 * 5.0**2), rtol=1e-12)
    np.testing.assert_allclose(independent_rdp(5.0, 3.0), GRID / 25 + GRID / 18, rtol=1e-12)
    votes = np.array([[40, 40], [0, 3]])
    cost = pate_cost(votes, sigma=5, delta=1e-5, threshold=30, sigma1=3)
    assert cost.dependent.epsilon <= cost.independent.epsilon


def test_many_queries_are_the_sum_of_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    votes = np.random.default_rng(0).multinomial(100, [0.6, 0.3, 0.1], size=25)
    whole = pate_cost(votes, sigma=20, delta=1e-5, threshold=50, sigma1=10)
    monkeypatch.setattr("raydp.extensions.pate.votes_cost.QUERIES_AT_ONCE", 4)
    parts = pate_cost(votes, sigma=20, delta=1e-5, threshold=50, sigma1=10)
    assert parts.dependent.epsilon == pytest.approx(whole.dependent.epsilon, rel=1e-12)
    assert parts.reference.epsilon == pytest.approx(whole.reference.epsilon, rel=1e-12)


@pytest.mark.parametrize("header", ["", "cat,dog,other\n"])
def test_the_command_reads_counts(
    raydp: Callable[..., Answer], tmp_path: Path, header: str
) -> None:
    (tmp_path / "votes.csv").write_text(f"{header}200,30,20\n\n100,90,60\n240,10,0\n")
    answer = raydp("pate", "votes.csv", "--sigma", 40, "--delta", 1e-5, "--json").json()
    cost = pate_cost(np.array([[200, 30, 20], [100, 90, 60], [240, 10, 0]]), sigma=40, delta=1e-5)
    assert (answer["epsilon"], answer["order"]) == (cost.dependent.epsilon, cost.dependent.order)
    assert answer["epsilon_data_independent"] == cost.independent.epsilon
    assert (answer["queries"], answer["teachers"], answer["classes"]) == (3, 250, 3)
    people = raydp(
        "pate", "votes.csv", "--sigma", 40, "--delta", 1e-5, "--threshold", 180, "--sigma1", 30
    )
    assert "by the votes" in people.out
    assert "publish only epsilon_data_independent" in people.out


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (None, (), "VOTES must be an existing CSV file"),
        ("", (), "VOTES must have a row of counts per query, got none"),
        ("a,b\n", (), "VOTES must have a row of counts per query, got none"),
        ("1,2\n3\n", (), "VOTES must have as many counts in each row, at least 2, got 1 in line 2"),
        ("5\n4\n", (), "at least 2, got 1 in line 1"),
        ("1,2\n3,x\n", (), "VOTES must hold whole numbers >= 0, got text in line 2"),
        ("1,-2\n", (), "got another number in line 1"),
        ("1,2.5\n", (), "got another number in line 1"),
        ("1,nan\n", (), "got no finite number in line 1"),
        ("1,2\n", ("--threshold", 3), "threshold and sigma1 must be given together"),
        ("1,2\n", ("--sigma", 0), "sigma must be 0.001 to 1e+09, got 0"),
        ("1,2\n", ("--sigma", "1e200"), "sigma must be 0.001 to 1e+09, got 1e+200"),
        ("1,2\n", ("--threshold", 3, "--sigma1", "nan"), "sigma1 must be 0.001 to 1e+09, got nan"),
        (
            "1,2\n",
            ("--threshold", "nan", "--sigma1", 4),
            "threshold must be at most 1e+09 in size, got nan",
        ),
        (
            "1,2\n",
            ("--threshold", "inf", "--sigma1", 4),
            "threshold must be at most 1e+09 in size, got inf",
        ),
        ("9007199254740992,0\n", (), "votes must be of at most 1000000 teachers"),
        (
            "0,0\n",
            ("--publish", "10,0.04,20"),
            "votes must have one vote of every teacher in each row",
        ),
        (
            "5,1\n4,1\n",
            ("--publish", "10,0.04,20"),
            "votes must have one vote of every teacher in each row",
        ),
        ("5,1\n", ("--publish", "10,0.04,1e-200"), "publish must be an order above 1"),
        ("5,1\n", ("--publish", "1e300,1e-302,3"), "publish must be an order above 1"),
        ("1,2\n", ("--delta", 1), "delta must be > 0 and < 1, got 1"),
    ],
)
def test_malformed_votes_are_refused(
    raydp: Callable[..., Answer],
    tmp_path: Path,
    content: str | None,
    options: tuple[object, ...],
    message: str,
) -> None:
    if content is not None:
        (tmp_path / "votes.csv").write_text(content)
    given = {"--sigma": 4, "--delta": 1e-5, **dict(zip(options[::2], options[1::2], strict=True))}
    answer = raydp("pate", "votes.csv", *(x for pair in given.items() for x in pair))
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_a_run_of_the_method_says_its_own_noise_and_delta(
    raydp: Callable[..., Answer], tmp_path: Path
) -> None:
    plan = plan_of_runs(privacy={"abc": record_of(epsilon=7.9, delta=1e-4, accountant="pld")})
    sweep = SweepFolder.create(
        load_spec(small_spec(tmp_path)), lambda key: replace(plan, delta=1e-4)
    )
    run = sweep.trial("abc")
    votes = [[30, 15, 5], [26, 24, 0]]
    details = {"votes": votes, "sigma": 9.5, "threshold": 28.0, "sigma1": 14.0, "answered": 1}
    sweep.commit(RunResult(run_id="abc", status="finished", utility_loss=1.0, details=details))
    path = tmp_path / "votes.csv"
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in votes))
    by_hand = raydp(
        "pate", path, "--sigma", 9.5, "--delta", 1e-4, "--threshold", 28, "--sigma1", 14, "--json"
    )
    recorded = {"recorded_epsilon": 7.9, "recorded_accountant": "pld"}
    assert raydp("pate", run, "--json").json() == {**by_hand.json(), **recorded}
    assert (
        "the run's record states ε = 7.9 whatever the votes, by accountant pld"
        in raydp("pate", run).out
    )
    for arguments, message in (
        ((run, "--sigma", 3), "--sigma must be left out with a run's folder"),
        ((tmp_path,), "VOTES must be a CSV file, or the folder of a finished run of method pate"),
        ((path, "--delta", 1e-4), "--sigma must be given with a file of votes"),
        ((path, "--sigma", 3), "--delta must be given with a file of votes"),
    ):
        answer = raydp("pate", *arguments)
        assert answer.code == 2
        assert message in " ".join(answer.err.split())
