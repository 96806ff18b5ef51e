"""Each fault of the sets' weights is caught by the check that is there for it."""

from __future__ import annotations

import pytest

from raydp.extensions.reference_data.checks import CHECKS, weighted_subject
from raydp.extensions.reference_data.task import WithReferenceTask
from raydp.extensions.reference_data.weighted import OfTwoSets, WeightedDPSGD
from raydp.methods.dp import DPSGD
from raydp.selftest.checks.adaptive import adaptive_checks
from raydp.selftest.checks.draws import draw_checks
from raydp.selftest.checks.noise import noise_checks
from raydp.selftest.checks.sampling import sampling_checks
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.training.gradients.clipping import ClippedGradients
from tests.marks import slow_after
from tests.selftest.faults import rewrite
from tests.selftest.test_accounting_faults import each_split, failed_of
from tests.selftest.test_faults import failed


def test_without_a_fault_nothing_fails() -> None:
    assert not failed(sensitivity_checks(weighted_subject()))


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    slow_after(1, [
        (ClippedGradients, "accumulate", ("factors = factors * weights", "pass")),
        (ClippedGradients, "accumulate",
         ("clipping.factors(norms)", "clipping.factors(norms if weights is None else norms * weights)")),
        (OfTwoSets, "unit_weights", ('shares["training"], shares["reference"]', 'shares["reference"], shares["training"]')),
    ]),
    ids=["not weighted", "weighted before clipping", "each set with the other's weight"],
)  # fmt: skip
def test_reference_data_with_another_weight_than_accounted(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, owner, name, change)
    assert {"clipped sum", "one record"} <= failed(sensitivity_checks(weighted_subject()))


def test_noise_for_the_set_that_weighs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is accounted is the set that weighs more: noise in proportion to the other's weight is
    too little."""
    rewrite(
        monkeypatch,
        DPSGD,
        "train",
        ("(plan, plan.noise_multiplier)", "(plan, plan.noise_multiplier / 9)"),
    )
    assert "noise variance" in failed(noise_checks(WeightedDPSGD(reference_weight=0.9)))


@pytest.mark.slow
@pytest.mark.parametrize("reference_weight", [0.9, 0.3, 0.0])
def test_without_a_fault_no_check_of_noise_sampling_and_draws_fails(
    reference_weight: float,
) -> None:
    method = WeightedDPSGD(momentum=0.9, max_grad_norm=2.0, reference_weight=reference_weight)
    checks = (noise_checks, sampling_checks, adaptive_checks, draw_checks)
    assert not failed(each for of_method in checks for each in of_method(method))


@pytest.mark.slow
@each_split
def test_a_split_that_one_row_more_moves(monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    old = "[is_held_out(content, self.fraction, self.data_seed) for content in contents]"
    rewrite(monkeypatch, WithReferenceTask, "build", (old, split.format("list(contents)")))
    assert "rows that one row more moves (with_reference)" in failed_of(
        lambda: CHECKS.checks(None, float)
    )
