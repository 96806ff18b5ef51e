"""Accountants against closed forms, against each other, against plain library calls, and at their
limits."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import mpmath
import numpy as np
import prv_accountant
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from hypothesis import example, given
from hypothesis import strategies as st

from raydp.plugins.registries import names
from raydp.privacy import (
    AccountantError,
    PLDAccountant,
    PoissonGaussian,
    PrivacyTarget,
    PRVAccountant,
    RDPAccountant,
    guarantee,
)
from raydp.privacy.accounting import pld_step
from raydp.privacy.accounting.accountant import merged
from raydp.privacy.accounting.pld import _deltas, _directions, _epsilons
from raydp.privacy.accounting.pld_step import one_step, step_deltas
from raydp.privacy.accounting.prv import _instead
from raydp.privacy.accounting.rdp import ORDERS
from raydp.testing.accountants import TYPICAL, AccountantConformance, gaussian_epsilon
from tests.marks import slow_after


class TestPLD(AccountantConformance):
    accountant = PLDAccountant()
    excess = 1e-4  # the grid of losses, 1e-4 apart, and the rounding allowance


class TestPRV(AccountantConformance):
    accountant = PRVAccountant()
    # eps_error: 1 % of the first, looser bound on a small ε, and the library's own error once more
    excess = 0.022
    # the grid of the smallest δ is finer; 1e-5 was the most over 8 events and 7 δ
    mesh_effect = 2e-5


@pytest.mark.slow
def test_a_large_joint_epsilon_of_prv_is_an_upper_bound_on_a_coarser_grid() -> None:
    """The grid of prv at its usual error takes minutes for the models of a sweep."""
    events = [
        PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=480)
        for q, sigma in ((0.016, 0.55), (0.032, 0.65), (0.064, 0.9))
    ]
    fine = PRVAccountant()
    fine.joint_error_ratio = 0.0
    joint, at_usual_error, exact = (
        accountant.composed_epsilons(events, [1e-4])[0]
        for accountant in (PRVAccountant(), fine, PLDAccountant())
    )
    assert exact < at_usual_error < joint < 1.004 * exact


class TestRDP(AccountantConformance):
    accountant = RDPAccountant()
    # conversion from Rényi divergence: Canonne et al. 2020 (Figure 1) show 5 to 25 % for Gaussians
    excess = 0.25


def test_every_builtin_accountant_runs_the_conformance_suite() -> None:
    tested = {TestPLD.accountant.name, TestPRV.accountant.name, TestRDP.accountant.name}
    assert tested == set(names("accountants"))


@pytest.mark.parametrize(
    "event",
    slow_after(
        1,
        [
            PoissonGaussian(sample_rate=0.0228, noise_multiplier=0.9617, num_steps=500),
            PoissonGaussian(sample_rate=0.5689, noise_multiplier=5.0, num_steps=256),
            PoissonGaussian(sample_rate=0.001, noise_multiplier=0.7, num_steps=2000),
            PoissonGaussian(sample_rate=1.0, noise_multiplier=3.0, num_steps=5),
        ],
    ),
)
def test_pld_is_below_prv_and_prv_below_rdp(event: PoissonGaussian) -> None:
    """prv is conservative by at most 2 eps_error, rdp by 3 % at least (Hu et al. 2025, Table 10: 5
    % in σ)."""
    pld, prv, rdp = (
        a.epsilon(event, 1e-6) for a in (PLDAccountant(), PRVAccountant(), RDPAccountant())
    )
    assert pld < prv < pld + 2 * PRVAccountant.eps_error
    assert rdp > 1.03 * prv


def test_prv_equals_the_library_called_plainly() -> None:
    from prv_accountant.dpsgd import DPSGDAccountant

    library = DPSGDAccountant(
        noise_multiplier=TYPICAL.noise_multiplier,
        sampling_probability=TYPICAL.sample_rate,
        max_steps=TYPICAL.num_steps,
        eps_error=0.01,
        delta_error=1e-8,
    )
    upper = library.compute_epsilon(delta=1e-5, num_steps=TYPICAL.num_steps)[2]
    assert PRVAccountant().epsilon(TYPICAL, 1e-5) == pytest.approx(upper, rel=1e-12)


def test_rdp_is_not_looser_than_opacus_with_its_default_orders() -> None:
    from opacus.accountants import RDPAccountant as OpacusAccountant

    opacus = OpacusAccountant()
    opacus.history = [(TYPICAL.noise_multiplier, TYPICAL.sample_rate, TYPICAL.num_steps)]
    ours = RDPAccountant().epsilon(TYPICAL, 1e-5)
    theirs = opacus.get_epsilon(1e-5)
    # Their grid (steps of 0.1 and 1) can lose up to 1 %; ours, 2 % apart in α - 1, at most
    # (0.01)²/2 (second order).
    assert 0.99 * theirs <= ours <= theirs * (1 + 5e-5)


def test_rdp_leaves_out_the_fractional_orders_that_opacus_gets_wrong() -> None:
    """Opacus stops the series of order 63.5 at its first term and returns a negative divergence, a
    false proof."""
    from opacus.accountants.analysis.rdp import compute_rdp

    assert compute_rdp(q=0.5, noise_multiplier=20.0, steps=1, orders=63.5) < 0
    assert all(order < 11 or order.is_integer() for order in ORDERS)
    for sigma in (0.3, 1.0, 20.0, 200.0):
        values = [
            compute_rdp(q=0.5, noise_multiplier=sigma, steps=1, orders=order)
            for order in ORDERS[::90]
        ]
        assert values == sorted(values), "a Rényi divergence does not fall with its order"
        assert values[0] > 0


def test_pld_stays_above_the_exact_value_where_rounding_moves_the_plain_librarys() -> None:
    """100,000 steps leave 1e-12 to 1e-11 of rounding noise in δ, and it depends on the processor
    whether the plain library's answer at δ = 1e-10 is then above the exact one, 43.663 (43.678 on
    one), or below."""
    steps, mu, delta = 100_000, 5.0, 1e-10
    # A sample rate a hair below 1 takes our general path instead of the closed composition of full
    # batches.
    event = PoissonGaussian(sample_rate=1 - 1e-9, noise_multiplier=steps**0.5 / mu, num_steps=steps)
    exact = gaussian_epsilon(mu, delta)
    assert exact <= PLDAccountant().epsilon(event, delta) <= 1.02 * exact


@pytest.mark.parametrize(
    ("q", "sigma"),
    slow_after(
        3,
        [
            (0.0228, 1.43),
            (1.0, 0.7),
            (1e-5, 4.0),
            (0.5, 20.0),
            (0.9, 0.3),
            (0.3, 0.1),
            (0.999999, 1.2),
        ],
    ),
)
def test_one_step_is_that_of_the_librarys_loop(q: float, sigma: float) -> None:
    """δ at losses of both signs, also where exp overflows, and the distribution on the grid."""
    epsilons = np.concatenate([np.linspace(-3, 3, 601), np.linspace(-900, 900, 300)])
    for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD):
        loss = GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=adjacency)
        with np.errstate(all="ignore"):
            library = loss.get_delta_for_epsilon(epsilons)
        np.testing.assert_allclose(step_deltas(loss, epsilons), library, rtol=0, atol=1e-15)
    event, interval = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=1), 1e-3
    made = one_step(event, interval)
    library = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma, sampling_prob=q, value_discretization_interval=interval
    )
    assert made._symmetric == library._symmetric == (q == 1)
    for own, other in zip(_directions(made), _directions(library), strict=True):
        own, other = own.to_dense_pmf(), other.to_dense_pmf()
        assert own._lower_loss == other._lower_loss
        # Probabilities are differences of δ divided by the interval.
        np.testing.assert_allclose(own._probs, other._probs, rtol=0, atol=4e-15 / interval)
        assert own._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-9, abs=1e-30)


@pytest.mark.parametrize(
    ("rest", "sigma"),
    slow_after(1, [(1.1e-9, 0.119), (1e-13, 0.085), (1e-6, 0.5), (0.3, 0.1), (0.999, 0.3)]),
)
def test_one_step_near_the_end_of_its_losses(rest: float, sigma: float) -> None:
    """1 - q is `rest`.

    Of an added example no loss is above -ln(1 - q), of a removed one none below ln(1 - q); there a
    rounding of the outcome would change δ most. The library's loop raises or is wrong for the
    smallest two.
    """
    q = 1 - rest
    end = -math.log1p(-q)
    distances = np.concatenate([10.0 ** np.arange(-9, 1), np.linspace(1e-4, 1, 20)])
    for adjacency, epsilons in (
        (AdjacencyType.ADD, end - distances),
        (AdjacencyType.REMOVE, distances - end),
    ):
        loss = GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=adjacency)
        with mpmath.workdps(60):
            exact = [
                float(exact_delta(mpmath.mpf(q), mpmath.mpf(sigma), mpmath.mpf(e), adjacency))
                for e in epsilons
            ]
        np.testing.assert_allclose(
            step_deltas(loss, epsilons), exact, rtol=1e-9, atol=50 * 2.0**-53
        )


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), slow_after(1, [(0.03, 4.0, 50), (0.01, 1.0, 1000), (0.3, 4.0, 100)])
)
def test_rounding_is_within_the_allowance(q: float, sigma: float, steps: int) -> None:
    """Against steps whose probabilities are computed with 40 digits, on the same grid: δ is above
    theirs, by little."""
    interval = 2e-3
    event = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=steps)
    exact = privacy_loss_distribution.PrivacyLossDistribution(
        *(
            exact_step(q, sigma, interval, adjacency)
            for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD)
        )
    ).self_compose(steps)
    own = one_step(event, interval).self_compose(steps)
    epsilons, allowance = np.linspace(0, 4, 200), (128 + 4 * steps) * 2.0**-53
    for mine, theirs in zip(_directions(own), _directions(exact), strict=True):
        below = _deltas(theirs, epsilons) - _deltas(mine, epsilons)
        assert below.max() < allowance / 2, "the allowance is more than twice the largest deficit"
        assert below.min() > -1e-7, "rounding up costs little"


def exact_step(q: float, sigma: float, interval: float, adjacency: AdjacencyType) -> pld_pmf.PLDPmf:
    """One step by Connect-the-Dots (Doroshenko et al. 2022, Algorithm 1) with 40 digits."""
    bounds = GaussianPrivacyLoss(
        sigma, sampling_prob=q, adjacency_type=adjacency
    ).connect_dots_bounds()
    low, high = (
        math.floor(bounds.epsilon_lower / interval),
        math.ceil(bounds.epsilon_upper / interval),
    )
    with mpmath.workdps(40):
        deltas = [exact_delta(mpmath.mpf(q), mpmath.mpf(sigma), k * mpmath.mpf(interval), adjacency)
                  for k in range(low, high + 1)]  # fmt: skip
        falls = [after - before for before, after in itertools.pairwise(deltas)]
        growth = mpmath.exp(mpmath.mpf(interval))
        first = 1 - deltas[0] + falls[0] / (growth - 1)
        middle = [
            (after - before * growth) / (growth - 1) for before, after in itertools.pairwise(falls)
        ]
        last = falls[-1] / (1 / growth - 1)
        probabilities = np.array([float(max(p, 0)) for p in (first, *middle, last)])
    return pld_pmf.DensePLDPmf(
        interval, low, probabilities, float(deltas[-1]), pessimistic_estimate=True
    )


def exact_delta(
    q: mpmath.mpf, sigma: mpmath.mpf, epsilon: mpmath.mpf, adjacency: AdjacencyType
) -> mpmath.mpf:
    """δ(ε) of one step: an outcome is N(0, σ²), or with probability q an example away."""
    if adjacency == AdjacencyType.REMOVE:
        if epsilon <= mpmath.log1p(-q):
            return -mpmath.expm1(epsilon)
        x = -(sigma**2) * mpmath.log1p(mpmath.expm1(epsilon) / q) - mpmath.mpf(1) / 2
        without = mpmath.ncdf(x / sigma)
        return (1 - q) * without + q * mpmath.ncdf((x + 1) / sigma) - mpmath.exp(epsilon) * without
    if epsilon >= -mpmath.log1p(-q):
        return mpmath.mpf(0)
    x = sigma**2 * mpmath.log1p(mpmath.expm1(-epsilon) / q) + mpmath.mpf(1) / 2
    without = mpmath.ncdf(x / sigma)
    return without - mpmath.exp(epsilon) * ((1 - q) * without + q * mpmath.ncdf((x - 1) / sigma))


@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    slow_after(2, [(0.0228, 1.43, 50), (1.0, 3.0, 1), (0.3, 4.0, 2000), (1e-3, 0.5, 9)]),
)
def test_plds_curve_is_the_librarys_with_the_rounding_error_above_it(
    q: float, sigma: float, steps: int
) -> None:
    event = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=steps)
    accountant = PLDAccountant()
    epsilons = 1.5 * accountant.epsilon(event, 1e-9) * np.linspace(0, 1, 300) ** 2
    step = one_step(event, 1e-4)  # see test_one_step_is_that_of_the_librarys_loop
    library = np.asarray(step.self_compose(steps).get_delta_for_epsilon(epsilons))
    assert library[0] > library[-1]
    error = (128 + 4 * steps) * 2.0**-53
    np.testing.assert_allclose(
        accountant.deltas(event, epsilons), np.maximum(library, 0) + error, rtol=1e-8, atol=0
    )
    assert accountant.deltas(event, np.array([1e4]))[0] == pytest.approx(
        error + steps * 1e-15, rel=1e-3, abs=steps * 1e-15
    )
    deltas = [0.3, 1e-2, 1e-4, 1e-6, 1e-9]
    own = accountant.epsilons(event, deltas)
    # The library adds its grid of losses up step by step; ours is a multiple of the interval.
    np.testing.assert_allclose(
        own, [step.self_compose(steps).get_epsilon_for_delta(d - error) for d in deltas], 1e-9
    )
    known = [(epsilon, delta) for epsilon, delta in zip(own, deltas, strict=True) if epsilon > 0]
    back = accountant.deltas(event, np.array([epsilon for epsilon, _ in known]))
    np.testing.assert_allclose(back, [delta for _, delta in known], rtol=1e-6, err_msg="δ(ε(δ))")


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=12),
    st.integers(0, 3),
    st.integers(-4, 650) | st.integers(760, 900),
    st.integers(1, 40),
)
@example([1, 1], 2, 760, 12)
@example([0, 1, 0], 3, 760, 12)
@example([2, 2], 0, 3, 20)
def test_epsilon_of_a_distribution_is_the_librarys(
    weights: list[int], infinite: int, lowest: int, share: int
) -> None:
    """Also where δ is met exactly, and where exp(-loss) is not a number above 0 any more.

    Between the two the library divides by a subnormal number and answers infinity.
    """
    total = sum(weights) + infinite or 1
    probabilities = np.array(weights) / total
    pmf = pld_pmf.DensePLDPmf(
        1.0, lowest, probabilities, infinite / total, pessimistic_estimate=True
    )
    for delta in (share / 41, share / total / 4, max(infinite / total, 1e-9)):
        if delta < 1:
            (own,) = _epsilons(pmf, [delta])
            assert own == pytest.approx(pmf.get_epsilon_for_delta(delta), rel=1e-9, abs=1e-9)


def test_pld_refuses_a_delta_that_rounding_decides() -> None:
    event = PoissonGaussian(sample_rate=0.01, noise_multiplier=2.0, num_steps=100_000)
    with pytest.raises(
        AccountantError, match=r"delta must be > 8\.9e-11 for accountant 'pld' at 100000 steps"
    ):
        PLDAccountant().epsilon(event, 1e-11)


def test_pld_refuses_grids_that_do_not_fit_in_memory() -> None:
    with pytest.raises(AccountantError, match=r"limited to 4,000,000 cells a step"):
        PLDAccountant().epsilon(
            PoissonGaussian(sample_rate=0.5, noise_multiplier=0.01, num_steps=1), 1e-5
        )
    with pytest.raises(AccountantError, match=r"30,000,000 in all"):
        PLDAccountant().epsilon(
            PoissonGaussian(sample_rate=0.5, noise_multiplier=0.2, num_steps=100_000), 1e-5
        )


@pytest.mark.parametrize(
    ("q", "mu", "steps"),
    [(1.0, 4e-4, 1), (0.01, 4e-4, 1000), (0.01, 0.03, 100_000), (1e-4, 4e-4, 10_000)],
)
def test_plds_grid_is_fine_enough_for_small_losses(q: float, mu: float, steps: int) -> None:
    """Many small steps are Gaussian in the limit (Bu et al. 2020, Theorem 5). The limit is off by
    less than 0.3 % of ε here; a grid of 1e-4 gave up to 6 times this ε. The noise is found in the
    limit, apart from the code under test."""
    sigma = math.log1p((mu / math.sqrt(steps) / q) ** 2) ** -0.5
    event = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=steps)
    epsilon, limit = PLDAccountant().epsilon(event, 1e-5), gaussian_epsilon(mu, 1e-5)
    assert limit * (1 - 1e-3) < epsilon < limit * 1.003
    assert epsilon < RDPAccountant().epsilon(event, 1e-5)


def test_a_remedy_names_an_accountant_that_has_an_answer() -> None:
    """'prv' names 'pld' only where 'pld' has no limit of its own."""
    heavy = PoissonGaussian(sample_rate=0.5, noise_multiplier=0.01, num_steps=1)
    with pytest.raises(AccountantError, match=r"Use accountant 'rdp'\."):
        PLDAccountant().epsilon(heavy, 1e-5)
    assert _instead([heavy], [1e-5]) == "Use accountant 'rdp'."
    assert _instead([TYPICAL], [1e-14]) == "Use accountant 'rdp'."
    assert _instead([TYPICAL], [1e-5]) == "Use accountant 'pld'."
    assert RDPAccountant().epsilon(heavy, 1e-5) < math.inf


@pytest.mark.slow
def test_prv_names_its_limits_and_hands_over_to_no_other() -> None:
    fine = PoissonGaussian(sample_rate=0.001, noise_multiplier=50.0, num_steps=100_000)
    with pytest.raises(AccountantError, match=r"'prv' is limited to 12,000,000 grid points"):
        PRVAccountant().epsilon(fine, 1e-5)
    with pytest.raises(AccountantError, match=r"prv_accountant says .*Floating point errors"):
        PRVAccountant().epsilon(TYPICAL, 1e-16)


def test_prv_reaches_noise_multipliers_that_the_librarys_search_refuses() -> None:
    """find_noise_multiplier stops at mu_max = 100; the accountant itself does not."""
    event = PoissonGaussian(sample_rate=1.0, noise_multiplier=300.0, num_steps=1000)
    exact = gaussian_epsilon(1000**0.5 / 300, 1e-6)
    assert exact < PRVAccountant().epsilon(event, 1e-6) <= 1.022 * exact


def test_merging_keeps_the_total_and_separates_different_events() -> None:
    other = PoissonGaussian(sample_rate=0.1, noise_multiplier=1.2, num_steps=5)
    full = PoissonGaussian(sample_rate=1.0, noise_multiplier=2.0, num_steps=4)
    result = merged([TYPICAL, other, full, TYPICAL, full])
    assert [(e.sample_rate, e.num_steps) for e in result] == [(0.05, 120), (0.1, 5), (1.0, 1)]
    assert result[-1].noise_multiplier == pytest.approx((8 / 4) ** -0.5, rel=1e-15)


def test_composition_needs_an_event() -> None:
    with pytest.raises(ValueError, match=r"events must hold at least one event"):
        PLDAccountant().composed_epsilons([], [1e-5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample_rate": 0.0}, "sample_rate must be > 0 and <= 1, got 0.0"),
        ({"sample_rate": 1.01}, "sample_rate must be > 0 and <= 1, got 1.01"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0 and finite, got 0.0"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier must be > 0 and finite, got inf"),
        ({"num_steps": 0}, "num_steps must be an integer >= 1, got 0"),
        ({"num_steps": 1.5}, "num_steps must be an integer >= 1, got 1.5"),
    ],
)
def test_events_are_validated(arguments: dict[str, float], message: str) -> None:
    valid = {"sample_rate": 0.1, "noise_multiplier": 1.0, "num_steps": 10}
    with pytest.raises(ValueError, match=message):
        PoissonGaussian(**(valid | arguments))


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 1e-5), (float("inf"), 1e-5), (1.0, 0.0), (1.0, 1.0)]
)
def test_targets_are_validated(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"target_(epsilon|delta) must be > 0"):
        PrivacyTarget(epsilon=epsilon, delta=delta)


def test_import_is_light() -> None:
    """Neither torch nor the numerics are loaded before an accountant is used."""
    code = "import sys, raydp.privacy; print(sorted({'torch', 'numpy', 'scipy', 'opacus', 'ray'} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_prv_falls_back_to_a_coarser_error_of_its_own() -> None:
    """prv_accountant refuses this run at eps_error 0.01 and 0.02.

    At 0.05 its two bounds are 2 · 0.05 apart, with the tight ε between them.
    """
    event = PoissonGaussian(sample_rate=0.1048, noise_multiplier=0.543, num_steps=10)
    bound, tight = (
        accountant().epsilon(event, 1.88e-4) for accountant in (PRVAccountant, PLDAccountant)
    )
    assert tight <= bound <= tight + 2 * 0.05


def test_rdp_reads_opacus_without_torch() -> None:
    """opacus's package would load torch: seconds of every `raydp profile`.

    Its function alone gives the same values.
    """
    code = (
        "import sys; from raydp.privacy import RDPAccountant, PoissonGaussian; "
        f"RDPAccountant().epsilon({TYPICAL!r}, 1e-5); print(sorted({{'torch', 'opacus'}} & "
        "set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


DELTAS = [1e-2, 1e-3, 1e-5, 1e-8]


@pytest.mark.slow
def test_prv_composes_once_for_all_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The composition of the smallest δ serves all: every ε is a bound, and what its δ alone
    gives."""
    alone = [PRVAccountant().epsilon(TYPICAL, delta) for delta in DELTAS]
    compose, calls = prv_accountant.PRVAccountant.compute_composition, []

    def counted(self: object, steps: list[int]) -> object:
        calls.append(steps)
        return compose(self, steps)

    monkeypatch.setattr(prv_accountant.PRVAccountant, "compute_composition", counted)
    together = PRVAccountant().epsilons(TYPICAL, DELTAS)
    below_one = sum(
        epsilon < 1 for epsilon in together
    )  # these are composed again, at an error in proportion
    assert len(calls) == 1 + below_one
    assert together == pytest.approx(alone, rel=TestPRV.mesh_effect)
    assert all(
        tight <= upper
        for tight, upper in zip(PLDAccountant().epsilons(TYPICAL, DELTAS), together, strict=True)
    )


def test_a_guarantee_is_discretised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """ε at every δ, μ and the attacker's limits come from one privacy loss distribution."""
    calls = []

    def counted(event: PoissonGaussian, interval: float) -> object:
        calls.append(event)
        return one_step(event, interval)

    monkeypatch.setattr(pld_step, "one_step", counted)
    event = PoissonGaussian(sample_rate=0.0511, noise_multiplier=1.3, num_steps=17)
    said = guarantee(event, "pld")
    assert len(calls) == 1
    assert said["gdp_mu"] is not None
    assert said["attack"]["true_positive_rates"]


@pytest.mark.parametrize("delta", [0.5, 0.9])
def test_prv_refuses_in_a_sentence_where_epsilon_is_0(delta: float) -> None:
    """The library's step of the grid is then 0."""
    event = PoissonGaussian(sample_rate=1.0, noise_multiplier=1.0, num_steps=1)
    with pytest.raises(AccountantError, match="Use accountant"):
        PRVAccountant().epsilon(event, delta)
