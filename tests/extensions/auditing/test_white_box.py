"""The white-box audit of the self-test finds a mechanism that leaks more than is stated."""

from __future__ import annotations

import pytest

from raydp.extensions.auditing import white_box
from raydp.extensions.auditing.white_box import CHECKS, audit_check, mu_lower_bound
from raydp.methods.dp import DPSGD
from raydp.training.gradients.thresholds import Clipping
from tests.marks import slow_after
from tests.selftest.faults import rewrite


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    slow_after(
        1,
        [
            (
                DPSGD,
                "train",
                ("(plan, plan.noise_multiplier)", "(plan, plan.noise_multiplier / 2)"),
            ),
            (
                Clipping,
                "factors",
                ("self.max_grad_norm / norms.clamp(min=self.max_grad_norm)", "norms**0"),
            ),
        ],
    ),
    ids=["half of sigma", "no clipping"],
)
def test_the_audit_finds_more_than_is_stated(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, owner, name, change)
    found = audit_check(300)
    assert not found.passed
    assert found.figure > 4


@pytest.mark.slow
def test_audit_fails_when_it_finds_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the canary does not reach the model: then it would not notice anything."""
    rewrite(monkeypatch, white_box, "_attack_statistic", ("3 * MAX_GRAD_NORM * canary", "0.0"))
    assert audit_check(300).figure < 2.4


@pytest.mark.parametrize(("errors", "mu"), [(0, 4.7), (250, 0.9), (500, 0.0), (1000, 0.0)])
def test_the_bound_on_mu_lies_below_the_mu_of_the_error_rates(errors: int, mu: float) -> None:
    """For a Gaussian mechanism and the midpoint both rates are Φ(-μ/2); 250 of 1,000 is μ =
    1.35."""
    assert mu_lower_bound(errors, errors, 1000) == pytest.approx(mu, abs=0.2)


@pytest.mark.slow
def test_the_self_test_says_how_far_the_audit_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydp.extensions.auditing.white_box.NUM_RUNS", 200)
    shares = list[float]()
    (audit,) = CHECKS.checks(None, shares.append)
    assert audit.name == "audit with a canary"
    assert shares == [0.25, 0.5, 0.75, 1.0]
