"""Each fault in what ε is, in what a choice tells, and in who is whose, is caught by the check that is there for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from raydp.methods.output_perturbation import OutputPerturbation
from raydp.privacy.accounting import base, pld, pld_step, prv, two_way
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.privacy.mechanisms import num_runs, selection_profile, tuning
from raydp.privacy.records import record
from raydp.selftest.checks import accounting, choice
from raydp.selftest.checks.accounting import (
    accountant_checks,
    accounting_checks,
    composed_at_least,
    gaussian_epsilon,
    prv_error_check,
    step_epsilon,
    together_check,
)
from raydp.selftest.checks.choice import choice_checks
from raydp.selftest.checks.choice_profiles import choice_profile_checks
from raydp.selftest.checks.descent import descent_checks
from raydp.selftest.checks.divisions import division_checks
from raydp.sweep.engine import recorder
from raydp.sweep.private_selection import draws
from raydp.tasks import users
from raydp.tasks.classification import tabular, text_classification
from raydp.tasks.text import any_text as text
from raydp.tasks.text import corpus, language
from raydp.tasks.wrappers import with_public, with_reference
from raydp.training import logistic
from raydp.training.logistic import LogisticDescent
from tests.marks import slow_after
from tests.selftest.faults import rewrite
from tests.selftest.test_faults import failed

GUARANTEE = sys.modules["raydp.privacy.records.guarantee"]
"""The module: the package has a function of its name."""
DISTINCT = "list(dict.fromkeys({}))"
OF_USERS = {"users in a unit", "units of a user", "rows of a user in their unit"}
REMAINDER = "bits of labels and the remainder of K"
BY_PROFILES = {"Poisson", "binomial", "η = -0.5", "η = 0", "η = 1"}
LOG_MEAN = (" + math.log(self.mean) / (order - 1)", "")


def test_without_a_fault_nothing_fails() -> None:
    checks = [*accounting_checks(), *choice_checks(), *choice_profile_checks(), *division_checks()]
    for method in (OutputPerturbation(max_input_norm=1e3, weight_decay=1e3), OutputPerturbation(weight_decay=0)):
        checks += descent_checks(method)
    assert [c for c in checks if not c.passed] == []


EACH = "methods[trial.settings].event(trial, trial.noise_multiplier) for trial in trials"


@pytest.mark.parametrize(
    ("owner", "name", "change", "users_of_it"),
    slow_after(2, [
        (recorder, "cost_together", (f"[{EACH}]", f"list({{{EACH}}})"), [accounting]),
        (record, "composed_epsilon", ("epsilons(events,", f"epsilons({DISTINCT.format('events')},"), [GUARANTEE]),
        (base.Accountant, "composed_epsilons", ("merged(private)", f"merged({DISTINCT.format('private')})"), []),
        (base, "merged", ("steps.get(key, 0) + event.num_steps", "event.num_steps"), []),
        (base, "merged", ("steps.get(key, 0) + event.num_steps", "max(steps.get(key, 0), event.num_steps)"), []),
    ]),
    ids=["models", "record", "accountant", "the last alone", "the longest alone"],
)  # fmt: skip
def test_equal_events_that_count_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: tuple[str, str], users_of_it: list[Any]
) -> None:
    rewrite(monkeypatch, owner, name, change)
    for user in users_of_it:
        monkeypatch.setattr(user, name, getattr(owner, name))
    assert not together_check("rdp").passed
    assert not together_check("pld").passed


def test_the_composition_of_the_check_is_right() -> None:
    """Of Gaussians, of one step, and of several against prv: below the exact ε, by what the mesh loses."""
    nearly_all = accounting.NEARLY_ALL
    exact = gaussian_epsilon((3 / 16 + 4 / 25) ** 0.5, 1e-5)
    assert exact - 8e-4 < composed_at_least([(nearly_all, 4.0, 3), (nearly_all, 5.0, 4)], 1e-5) < exact
    exact = step_epsilon(0.1, 0.8, 1e-5)
    assert exact - 2e-4 < composed_at_least([(0.1, 0.8, 1)], 1e-5) < exact


def failed_of(checks: Callable[[], Any]) -> set[str]:
    """Whole names of the checks that fail."""
    return {c.name for c in checks() if not c.passed}


def optimistic_step(event: PoissonGaussian, interval: float) -> Any:
    return privacy_loss_distribution.from_gaussian_mechanism(
        event.noise_multiplier, sampling_prob=event.sample_rate, value_discretization_interval=interval,
        pessimistic_estimate=False, use_connect_dots=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    slow_after(
        2,
        [
            (pld, "_composition", ("(event.num_steps)", "(max(1, event.num_steps - 1))")),
            (pld_step, "step_deltas", ("loss.mu_lower_log_cdf", "1e-4 + loss.mu_lower_log_cdf")),
            (pld_step, "one_step", ("(event.noise_multiplier", "(1.001 * event.noise_multiplier")),
            (pld, "_composition", ("one_step(event, interval)", "_optimistic_step(event, interval)")),
        ],
    ),
    ids=["a step less", "less", "more noise", "optimistic"],
)  # fmt: skip
def test_a_pld_that_says_too_little(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: tuple[str, str]
) -> None:
    monkeypatch.setattr(pld, "_composition", pld._composition.__wrapped__)  # without what it remembers
    monkeypatch.setattr(pld, "_optimistic_step", optimistic_step, raising=False)
    rewrite(monkeypatch, owner, name, change)
    if name == "one_step":
        monkeypatch.setattr(pld, name, pld_step.one_step)
    assert "ε of 40 Gaussians (pld)" in failed_of(lambda: accountant_checks("pld"))


@pytest.mark.parametrize(
    "change",
    [
        ("event.num_steps / event.noise_multiplier**2", "1 / event.noise_multiplier**2"),
        pytest.param(("precision**-0.5", "1 / precision"), marks=pytest.mark.slow),
    ],
    ids=["a step for all", "a variance for a deviation"],
)
def test_full_batches_that_cost_too_little(monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]) -> None:
    rewrite(monkeypatch, base, "merged", change)
    assert "ε of 40 full batches (pld)" in failed_of(lambda: accountant_checks("pld"))


@pytest.mark.parametrize("place", [0, 1], ids=["lower", "central"])
def test_an_estimate_of_prv_that_is_no_bound(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    rewrite(monkeypatch, prv.PRVAccountant, "_uppers", ("eps_error)[2]", f"eps_error)[{place}]"))
    assert not prv_error_check().passed


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
def test_a_choice_that_is_too_cheap(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: tuple[str, str], caught: set[str]
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
def test_a_choice_that_is_too_cheap_by_profiles(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: tuple[str, str], caught: set[str]
) -> None:
    rewrite(monkeypatch, owner, name, change)
    monkeypatch.setattr(tuning, "profile_epsilons", selection_profile.profile_epsilons)
    assert {f"ε of a choice by profiles ({kind})" for kind in caught} <= failed_of(choice_profile_checks)


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
    rewrite(monkeypatch, draws, "draw", ('stream.bits(count, step=0, purpose="label") >> 1', labels))
    monkeypatch.setattr(choice, "draw", draws.draw)
    assert caught in failed_of(choice_checks)


@pytest.mark.parametrize(
    ("name", "change", "caught"),
    [
        ("sensitivity", ("uses if log_shrink == 0 else", "1 if log_shrink == 0 else"), "one record after many passes"),
        ("sensitivity", ("-(-num_steps // self", "(num_steps // self"), "one record after many passes"),
        ("sensitivity", ("passes = uses", "passes = uses - 1"), "one record after many passes"),
        ("__post_init__", ("> self.largest", "> 2 * self.largest"), "step at the largest learning rate"),
    ],
    ids=["one pass at λ = 0", "passes rounded down", "a pass less", "too long"],
)  # fmt: skip
def test_a_sensitivity_that_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, name: str, change: tuple[str, str], caught: str
) -> None:
    rewrite(monkeypatch, LogisticDescent, name, change)
    assert caught in failed(descent_checks(OutputPerturbation()))


@pytest.mark.parametrize("rate", ["2 / self.smoothness", "4 / (self.smoothness + 2 * self.weight_decay)"])
def test_a_step_size_that_the_sensitivity_does_not_hold_for(monkeypatch: pytest.MonkeyPatch, rate: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def largest(self): return {rate}", vars(logistic) | scope, scope)
    monkeypatch.setattr(LogisticDescent, "largest_learning_rate", property(scope["largest"]))
    assert "step at the largest learning rate" in failed(descent_checks(OutputPerturbation()))


IN_ORDER = "[k % 3 == 0 for k, _ in enumerate({})]"
BY_RANK = (
    "(lambda h: [x in sorted(h)[: int(0.4 * len(h))] for x in h])"
    "([__import__('hashlib').sha256(str(x).encode()).hexdigest() for x in {}])"
)


@pytest.mark.parametrize("split", [IN_ORDER, BY_RANK], ids=["by place", "by rank"])
@pytest.mark.parametrize(
    ("owner", "name", "old", "rows", "title"),
    slow_after(2, [
        (corpus.WindowedTask, "_split", "[is_held_out(t.user, fraction, self.split_seed) for t in train]",
         "[t.user for t in train]", "text"),
        (tabular.TabularTask, "build", "[is_held_out(c, self.heldout_fraction, self.data_seed) for c in contents]",
         "list(contents)", "tabular"),
        (text_classification.TextClassificationTask, "build",
         "[is_held_out(text, self.heldout_fraction, self.data_seed) for text in texts]", "texts",
         "text_classification"),
        (with_public.WithPublicTask, "build",
         "[is_held_out(content, self.fraction, self.data_seed) for content in contents]", "list(contents)",
         "with_public"),
        (with_reference.WithReferenceTask, "build",
         "[is_held_out(content, self.fraction, self.data_seed) for content in contents]", "list(contents)",
         "with_reference"),
    ]),
    ids=["text", "tabular", "text_classification", "with_public", "with_reference"],
)  # fmt: skip
def test_a_split_that_one_row_more_moves(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, old: str, rows: str, title: str, split: str
) -> None:
    rewrite(monkeypatch, owner, name, (old, split.format(rows)))
    assert f"rows that one row more moves ({title})" in failed_of(division_checks)


BY_USER = 'order, sizes = np.argsort(self.users.of_example, kind="stable"), self.users.sizes()'


@pytest.mark.parametrize(
    ("owner", "name", "change"),
    [
        (language.LanguageModelingTask, "by_user",
         (BY_USER, "order, sizes = np.arange(len(self.train)), self.users.sizes()")),
        (language.LanguageModelingTask, "by_user",
         (BY_USER, "order, sizes = np.arange(len(self.train)), np.ones(len(self.train), np.int64)")),
        (text.TextTask, "build", ("users=users,", "users=None,")),
    ],
    ids=["not sorted", "each example alone", "not read"],
)  # fmt: skip
def test_a_users_rows_that_are_not_brought_together(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, owner, name, change)
    assert failed_of(division_checks) & OF_USERS


def test_rows_of_a_user_that_are_only_brought_together_where_they_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(cls: Any, names: Any, noun: str, **_: Any) -> users.Users:
        numbers: dict[Any, int] = {}
        of_example = [numbers.setdefault((place // 20, name), len(numbers)) for place, name in enumerate(names)]
        return cls(of_example=np.array(of_example, np.int64), noun=noun)

    monkeypatch.setattr(users.Users, "named", classmethod(named))
    assert failed_of(division_checks) >= OF_USERS - {"users in a unit"}
