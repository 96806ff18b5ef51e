"""Each fault in the ε of a choice, and in what a label tells, is caught by the check for it."""

from __future__ import annotations

from typing import Any

import pytest

from raydp.extensions.private_selection import choice_checks as choice
from raydp.extensions.private_selection import (
    draws,
    num_runs,
    selection_profile,
    tuning,
    two_way,
)
from raydp.extensions.private_selection.checks import CHECKS
from raydp.extensions.private_selection.choice_checks import choice_checks
from raydp.extensions.private_selection.choice_profile_checks import choice_profile_checks
from tests.marks import slow_after
from tests.selftest.faults import rewrite
from tests.selftest.test_accounting_faults import failed_of

REMAINDER = "bits of labels and the remainder of K"
BY_PROFILES = {"Poisson", "binomial", "η = -0.5", "η = 0", "η = 1"}
LOG_MEAN = (" + math.log(self.mean) / (order - 1)", "")


@pytest.mark.slow
def test_without_a_fault_nothing_fails() -> None:
    assert [c for c in CHECKS.checks(None, print) if not c.passed] == []


@pytest.mark.parametrize(
    ("owner", "name", "change", "caught"),
    [
        (num_runs.TruncatedNegativeBinomial, "cost", LOG_MEAN,
         {f"price of a choice (η = {eta})" for eta in ("-0.5", "0", "1")}),
        (num_runs.PoissonRuns, "cost", LOG_MEAN, {"price of a choice (Poisson)"}),
        (num_runs.TruncatedNegativeBinomial, "cost", ("(1 + self.eta) * second", "second"),
         {"price of a better outcome that is rarer (η = 1)"}),
        (num_runs.PoissonRuns, "cost", ("log1p(1 / (order - 1))", "log1p(2 / (order - 1))"),
         {"price of a better outcome that is rarer (Poisson)"}),
        (num_runs.PoissonRuns, "cost", ("self.mean * smallest_delta", "smallest_delta"), {"ε of a choice (Poisson)"}),
        (tuning, "renyi_epsilons", (" + num_runs.cost(order, curve)", ""), {"ε of a choice (Poisson)"}),
    ],
    ids=["log E[K]", "log E[K], Poisson", "1 + η", "ε̂", "E[K], Poisson", "no price"],
)  # fmt: skip
def test_choice_check_fails_when_choice_is_too_cheap(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    change: tuple[str, str],
    caught: set[str],
) -> None:
    rewrite(monkeypatch, owner, name, change)
    assert caught <= failed_of(choice_checks)


@pytest.mark.parametrize(
    ("owner", "name", "change", "caught"),
    slow_after(2, [
        (selection_profile.SelectionProfile, "delta", ("epsilon - self.log_slopes", "epsilon - 0 * self.log_slopes"),
         BY_PROFILES),
        (selection_profile.SelectionProfile, "delta", ("self.rises @", "self.rises / self.rises.sum() @"), BY_PROFILES),
        (two_way.TwoWayProfile, "largest", (" + backward[best]", ""), BY_PROFILES - {"η = 0", "η = -0.5"}),
        (selection_profile, "profile_epsilons", ("(run, run.reversed())", "(run.reversed(),)"), BY_PROFILES),
        (num_runs.TruncatedNegativeBinomial, "log_slope", ("(self.eta + 1)", "0.8 * (self.eta + 1)"), {"η = 1"}),
        (num_runs.BinomialRuns, "log_slope", ("(self.trials - 1)", "(self.trials - 3)"), {"binomial"}),
    ]),
    ids=["no shift", "E[K]", "no δ'", "one direction alone", "η", "trials"],
)  # fmt: skip
def test_choice_profile_check_fails_when_choice_is_too_cheap(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    change: tuple[str, str],
    caught: set[str],
) -> None:
    rewrite(monkeypatch, owner, name, change)
    monkeypatch.setattr(tuning, "profile_epsilons", selection_profile.profile_epsilons)
    assert {f"ε of a choice by profiles ({kind})" for kind in caught} <= failed_of(
        choice_profile_checks
    )


@pytest.mark.parametrize(
    ("labels", "caught"),
    [
        ("np.arange(count)", "place of the largest label"),
        ("(stream.bits(count, step=0, purpose='label') >> 40) + np.arange(count).astype(np.uint64) * 2**30",
         "place of the largest label"),
        ("(stream.bits(count, step=0, purpose='label') >> 17 << 16) + np.uint64(count)",
         "labels and the number of runs"),
        ("(stream.bits(count, step=0, purpose='label') >> 5 << 4) + np.uint64(min(count, 15))",
         "labels and the number of runs"),
        ("(stream.bits(count, step=0, purpose='label') >> 5 << 4) + np.arange(count).astype(np.uint64) % 16",
         "labels and the number of runs"),
        ("np.where(np.arange(count) == 0, stream.bits(count, step=0, purpose='label') >> 1,"
         " (stream.bits(count, step=0, purpose='label') >> 17 << 16) + np.uint64(count))",
         "labels and the number of runs"),
        ("stream.bits(count, step=0, purpose='label') * 0 + np.uint64(7)", "different labels"),
        ("(stream.bits(count, step=0, purpose='label') >> 2 << 1) | (count & 1)", REMAINDER),
        ("(stream.bits(count, step=0, purpose='label') >> 1) & ~np.uint64(2**40) | np.uint64(2**38 * (count & 4))",
         REMAINDER),
    ],
    ids=["the place", "grow with the place", "hold K", "K in the low bits", "the place in the low bits",
         "K in all but the first", "all the same", "the parity of K", "K mod 8 in bit 40"],
)  # fmt: skip
def test_labels_that_tell(monkeypatch: pytest.MonkeyPatch, labels: str, caught: str) -> None:
    rewrite(
        monkeypatch, draws, "draw", ('stream.bits(count, step=0, purpose="label") >> 1', labels)
    )
    monkeypatch.setattr(choice, "draw", draws.draw)
    assert caught in failed_of(choice_checks)
