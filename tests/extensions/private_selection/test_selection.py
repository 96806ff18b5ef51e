"""Noise for private selection: the best of K runs meets the target, tightly, and the record says
what it rests on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydp.extensions.private_selection.calibration import (
    SelectionCalibration,
    _power,
    _problem,
    calibrate_selection,
    selection_guarantee,
)
from raydp.extensions.private_selection.num_runs import (
    BinomialRuns,
    NumRuns,
    PoissonRuns,
    TruncatedNegativeBinomial,
)
from raydp.extensions.private_selection.record import PrivateSelectionRecord
from raydp.extensions.private_selection.renyi_orders import smallest
from raydp.extensions.private_selection.tuning import BOUNDS, tuned_epsilon, worst_curve
from raydp.privacy import (
    AccountedEpsilon,
    CalibrationRequest,
    Mechanism,
    PLDAccountant,
    PoissonGaussian,
    PrivacyCard,
    PrivacyTarget,
    RDPAccountant,
    attack_bounds,
    calibrate_many,
    card_markdown,
    privacy_record,
)
from raydp.privacy.accounting.rdp import ORDERS
from raydp.privacy.accounting.root_search import CalibrationError
from tests.marks import slow_after

TARGET = PrivacyTarget(epsilon=3.0, delta=1e-5)
DISTRIBUTIONS: dict[str, NumRuns] = {
    "geometric": TruncatedNegativeBinomial.with_mean(10, eta=1.0),
    "logarithmic": TruncatedNegativeBinomial.with_mean(4, eta=0.0),
    "eta below 0": TruncatedNegativeBinomial.with_mean(30, eta=-0.5),
    "poisson": PoissonRuns(mean=10),
}


def requests(target: PrivacyTarget = TARGET) -> list[CalibrationRequest]:
    pairs = ((32, 50), (32, 400), (2000, 3))
    return [
        CalibrationRequest.of_batches(num_examples=2000, batch_size=b, num_steps=t, target=target)
        for b, t in pairs
    ]


def events(solved: SelectionCalibration) -> list[PoissonGaussian]:
    return [run.event for run in solved.runs]


BY_ACCOUNTANT = [
    *(("rdp", name) for name in DISTRIBUTIONS),
    *(("pld", name) for name in ("geometric", "poisson", "binomial")),
]


def num_runs_named(name: str) -> NumRuns:
    return BinomialRuns(mean=10, trials=20) if name == "binomial" else DISTRIBUTIONS[name]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Solved calibrations of single runs, which by 'pld' take seconds."""
    return tmp_path_factory.mktemp("calibrations")


@pytest.mark.parametrize(("accountant", "name"), slow_after(4, BY_ACCOUNTANT))
def test_the_choice_meets_the_target_and_wastes_little(
    accountant: str, name: str, known: Path
) -> None:
    """0.998: TOLERANCE is 0.1 %."""
    num_runs = num_runs_named(name)
    solved = calibrate_selection(requests(), num_runs, accountant, cache_dir=known)
    assert solved.epsilon == tuned_epsilon(events(solved), num_runs, TARGET.delta, accountant)
    assert 0.998 * TARGET.epsilon < solved.epsilon <= TARGET.epsilon
    assert solved.factor > 1
    for run in solved.runs:
        assert run.accountant == accountant
        assert run.epsilon < solved.epsilon
    alone = {"rdp": RDPAccountant(), "pld": PLDAccountant()}[accountant]
    assert solved.runs[0].epsilon == alone.epsilon(events(solved)[0], TARGET.delta)


@pytest.mark.slow
def test_profiles_make_the_choice_cheaper_than_renyi_divergences(known: Path) -> None:
    """A choice among about ten runs, by profiles, needs at most 15 % more noise than one run at ε =
    8."""
    target = PrivacyTarget(epsilon=8.0, delta=4000**-1.1)
    one = [
        CalibrationRequest.of_batches(num_examples=4000, batch_size=64, num_steps=60, target=target)
    ]
    (alone,) = calibrate_many(one, "pld", cache_dir=known)
    for name in ("geometric", "poisson", "binomial"):
        (chosen,) = calibrate_selection(one, num_runs_named(name), "pld", cache_dir=known).runs
        assert 1 < chosen.noise_multiplier / alone.noise_multiplier < 1.15
    renyi = calibrate_selection(one, DISTRIBUTIONS["geometric"], "rdp").runs[0]
    assert renyi.noise_multiplier / alone.noise_multiplier > 1.3


def test_an_accountant_without_a_bound_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="accountant must be pld or rdp with tuning private_selection, got 'prv'"
    ):
        calibrate_selection(requests(), DISTRIBUTIONS["geometric"], "prv")


@pytest.mark.slow
def test_a_solution_is_kept_and_belongs_to_its_distribution(tmp_path: Path) -> None:
    geometric, poisson = DISTRIBUTIONS["geometric"], DISTRIBUTIONS["poisson"]
    first = calibrate_selection(requests(), geometric, cache_dir=tmp_path)
    assert calibrate_selection(requests(), geometric, cache_dir=tmp_path) == first
    assert calibrate_selection(requests(), poisson, cache_dir=tmp_path).factor != first.factor


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BinomialRuns(mean=10, trials=11), BinomialRuns(mean=10, trials=400)),
        (BinomialRuns(mean=4, trials=20), BinomialRuns(mean=10, trials=20)),
        (PoissonRuns(mean=4), PoissonRuns(mean=10)),
        (BinomialRuns(mean=10, trials=400), PoissonRuns(mean=10)),
    ],
)
def test_a_cached_solution_belongs_to_every_parameter_of_its_distribution(
    first: NumRuns, second: NumRuns
) -> None:
    """Another distribution is another problem, also where it differs in one parameter alone."""
    alone = calibrate_many(requests()[2:], "rdp")
    assert _problem(alone, first, TARGET) != _problem(alone, second, TARGET)


def test_a_target_that_no_noise_reaches_is_an_error() -> None:
    """The price of the number of runs alone is (1 + η) ln(1/γ) / 1024 at the largest order, 0.013
    here."""
    target = PrivacyTarget(epsilon=0.01, delta=1e-5)
    one = [
        CalibrationRequest.of_batches(
            num_examples=2000, batch_size=2000, num_steps=1, target=target
        )
    ]
    with pytest.raises(
        CalibrationError, match=r"privacy\.num_runs\.mean must be smaller for target_epsilon 0\.01"
    ):
        calibrate_selection(one, TruncatedNegativeBinomial.with_mean(1000, eta=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.6, 40.0])
def test_the_search_over_orders_finds_the_minimum_of_all_orders(sigma: float) -> None:
    """Each order is a bound, so the search can only be above; 1e-3 is what it may lose."""
    curve = worst_curve([PoissonGaussian(sample_rate=0.02, noise_multiplier=sigma, num_steps=100)])
    conversions = [
        lambda o: curve(o) - math.log(1e-6 * o) / (o - 1) + math.log1p(-1 / o),
        lambda o: (1 - 1 / o) * curve(o) + math.log(10) / o,
    ]
    for bound in conversions:
        exact = min(map(bound, ORDERS))
        assert exact <= smallest(bound) <= exact + 1e-3 * abs(exact)


@pytest.mark.parametrize("accountant", slow_after(1, ["rdp", "pld"]))
def test_the_guarantee_is_that_of_the_choice_and_not_of_one_run(
    accountant: str, known: Path
) -> None:
    num_runs = DISTRIBUTIONS["geometric"]
    solved = calibrate_selection(requests(), num_runs, accountant, cache_dir=known)
    said = selection_guarantee(events(solved), num_runs, accountant)
    assert said["accountant"] == said["attack"]["accountant"] == accountant
    for row in said["profile"]:
        assert row["epsilon"] == tuned_epsilon(events(solved), num_runs, row["delta"], accountant)
    alone = [attack_bounds(event) for event in events(solved)]
    assert np.mean([bound.advantage for bound in alone]) < said["attack"]["advantage"] < 1
    for k, row in enumerate(said["attack"]["true_positive_rates"]):
        assert np.mean([bound.true_positive_rates[k] for bound in alone]) < row["bound"] <= 1
        epsilon = tuned_epsilon(events(solved), num_runs, 1e-5, accountant)
        assert row["bound"] <= math.exp(epsilon) * row["false_positive_rate"] + 1e-5


@pytest.mark.slow
def test_a_delta_that_rounding_hides_has_a_reason_instead_of_an_epsilon() -> None:
    """The rounding error of pld at T = 10^7 is 4.4e-9.

    The table of one run ends at four times this δ, and the choice among ten at ten times the end of
    the table: 1.8e-7.
    """
    many = PoissonGaussian(sample_rate=1e-3, noise_multiplier=20.0, num_steps=10_000_000)
    said = selection_guarantee([many], DISTRIBUTIONS["geometric"], "pld")
    assert [row["epsilon"] is None for row in said["profile"]] == [False] * 4 + [True] * 2
    assert "below it double precision decides" in said["profile"][-1]["reason"]
    assert "advantage" in said["attack"]


def test_the_record_and_the_card_state_the_choice_and_its_assumptions() -> None:
    num_runs = DISTRIBUTIONS["geometric"]
    solved = calibrate_selection(requests(), num_runs)
    said = {"distribution": "truncated_negative_binomial", "mean": 10.0, "eta": 1.0, "configurations": 3,
            "single_run_epsilon": solved.runs[0].epsilon, "bound": BOUNDS["rdp"],
            "assumed": ["utility is public"]}  # fmt: skip
    arguments: dict[str, Any] = {
        "accounted": AccountedEpsilon(
            epsilon=solved.epsilon,
            delta=1e-5,
            target_epsilon=3.0,
            accountant="rdp",
            accountant_version="x",
        ),
        "mechanism": Mechanism(event=events(solved)[0], max_grad_norm=0.1),
        "unit": "mail",
        "noise_key": "secret",
    }
    made = privacy_record(**arguments, choice=PrivateSelectionRecord.from_json(said))
    record, ignored = made.to_json(), privacy_record(**arguments).to_json()
    assert (record["tuning"], record["private_selection"]) == ("private_selection", said)
    assert (ignored["tuning"], "private_selection" in ignored) == ("ignored", False)
    choice = [
        item
        for item in ignored["not_covered"]
        if item.startswith("the choice of this configuration")
    ]
    assert len(choice) == 1
    assert not set(choice) & set(record["not_covered"])
    assert any("not even how many" in item for item in record["not_covered"])
    card = card_markdown(
        PrivacyCard(record=made, guarantee=selection_guarantee(events(solved), num_runs))
    )
    assert f"This model is ({solved.epsilon:.4g}, 1e-05)-differentially private" in card
    assert "truncated negative binomial, mean 10, η 1" in card
    assert f"alone it would have ε = {solved.runs[0].epsilon:.4g}" in card
    assert "ε of the choice is bounded by Rényi divergences (Papernot and Steinke 2022)" in card
    assert "## Assumed\n\n- utility is public" in card


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2.0, 0.01), (2.0, 0.2)])
def test_an_attackers_limit_is_reached_by_a_mechanism_that_has_no_better_guarantee(
    epsilon: float, delta: float
) -> None:
    """With probability δ the answer is released as it is, else by randomised response at ε: the
    attacker who says "was there" on the first alone, on both, or on all but a released "no"."""
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    reached = [
        (0.0, delta),
        ((1 - delta) * (1 - truth), delta + (1 - delta) * truth),
        (1 - delta, 1.0),
    ]
    for false_positives, true_positives in reached:
        assert _power(false_positives, epsilon, delta) == pytest.approx(true_positives, rel=1e-12)
