"""Each fault in what ε is, and in who is whose, is caught by the check that is there for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from raydp.privacy.accounting import accountant, pld, pld_step, prv
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.privacy.records import record
from raydp.selftest.checks import accounting
from raydp.selftest.checks.accounting import (
    accountant_checks,
    accounting_checks,
    composed_at_least,
    gaussian_epsilon,
    prv_error_check,
    step_epsilon,
    together_check,
)
from raydp.selftest.checks.divisions import division_checks
from raydp.sweep.engine import recorder
from raydp.tasks import users
from raydp.tasks.text import any_text as text
from raydp.tasks.text import corpus, language
from tests.marks import slow_after
from tests.selftest.faults import rewrite

GUARANTEE = sys.modules["raydp.privacy.records.guarantee"]
"""The module: the package has a function of its name."""
DISTINCT = "list(dict.fromkeys({}))"
OF_USERS = {"users in a unit", "units of a user", "rows of a user in their unit"}


def test_without_a_fault_nothing_fails() -> None:
    assert [c for c in [*accounting_checks(), *division_checks()] if not c.passed] == []


EACH = "methods[trial.settings].event(trial, trial.noise_multiplier) for trial in trials"


@pytest.mark.parametrize(
    ("owner", "name", "change", "users_of_it"),
    slow_after(2, [
        (recorder, "cost_together", (f"[{EACH}]", f"list({{{EACH}}})"), [accounting]),
        (record, "composed_epsilon", ("epsilons(events,", f"epsilons({DISTINCT.format('events')},"), [GUARANTEE]),
        (accountant.Accountant, "composed_epsilons", ("merged(private)", f"merged({DISTINCT.format('private')})"), []),
        (accountant, "merged", ("steps.get(key, 0) + event.num_steps", "event.num_steps"), []),
        (accountant, "merged", ("steps.get(key, 0) + event.num_steps", "max(steps.get(key, 0), event.num_steps)"), []),
    ]),
    ids=["models", "record", "accountant", "the last alone", "the longest alone"],
)  # fmt: skip
def test_equal_events_that_count_once(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    change: tuple[str, str],
    users_of_it: list[Any],
) -> None:
    rewrite(monkeypatch, owner, name, change)
    for user in users_of_it:
        monkeypatch.setattr(user, name, getattr(owner, name))
    assert not together_check("rdp").passed
    assert not together_check("pld").passed


def test_the_composition_of_the_check_is_right() -> None:
    """Of Gaussians, of one step, and of several against prv: below the exact ε, by what the mesh
    loses."""
    nearly_all = accounting.NEARLY_ALL
    exact = gaussian_epsilon((3 / 16 + 4 / 25) ** 0.5, 1e-5)
    assert (
        exact - 8e-4 < composed_at_least([(nearly_all, 4.0, 3), (nearly_all, 5.0, 4)], 1e-5) < exact
    )
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
    monkeypatch.setattr(
        pld, "_composition", pld._composition.__wrapped__
    )  # without what it remembers
    monkeypatch.setattr(pld, "_optimistic_step", optimistic_step, raising=False)
    rewrite(monkeypatch, owner, name, change)
    assert "ε of 40 Gaussians (pld)" in failed_of(lambda: accountant_checks("pld"))


@pytest.mark.parametrize(
    "change",
    [
        ("event.num_steps / event.noise_multiplier**2", "1 / event.noise_multiplier**2"),
        pytest.param(("precision**-0.5", "1 / precision"), marks=pytest.mark.slow),
    ],
    ids=["a step for all", "a variance for a deviation"],
)
def test_full_batches_that_cost_too_little(
    monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    rewrite(monkeypatch, accountant, "merged", change)
    assert "ε of 40 full batches (pld)" in failed_of(lambda: accountant_checks("pld"))


@pytest.mark.parametrize("place", [0, 1], ids=["lower", "central"])
def test_an_estimate_of_prv_that_is_no_bound(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    rewrite(monkeypatch, prv.PRVAccountant, "_uppers", ("eps_error)[2]", f"eps_error)[{place}]"))
    assert not prv_error_check().passed


IN_ORDER = "[k % 3 == 0 for k, _ in enumerate({})]"
BY_RANK = (
    "(lambda h: [x in sorted(h)[: int(0.4 * len(h))] for x in h])"
    "([__import__('hashlib').sha256(str(x).encode()).hexdigest() for x in {}])"
)


each_split = pytest.mark.parametrize("split", [IN_ORDER, BY_RANK], ids=["by place", "by rank"])
"""Code of a split by the rows' places, or by their ranks. `{}` stands for the rows."""


@each_split
def test_a_split_that_one_row_more_moves(monkeypatch: pytest.MonkeyPatch, split: str) -> None:
    rewrite(
        monkeypatch, corpus.WindowedTask, "_split",
        ("[is_held_out(t.user, fraction, self.split_seed) for t in train]",
         split.format("[t.user for t in train]")),
    )  # fmt: skip
    assert "rows that one row more moves (text)" in failed_of(division_checks)


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


def test_rows_of_a_user_that_are_only_brought_together_where_they_are_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def named(cls: Any, names: Any, noun: str, **_: Any) -> users.Users:
        numbers: dict[Any, int] = {}
        of_example = [
            numbers.setdefault((place // 20, name), len(numbers))
            for place, name in enumerate(names)
        ]
        return cls(of_example=np.array(of_example, np.int64), noun=noun)

    monkeypatch.setattr(users.Users, "named", classmethod(named))
    assert failed_of(division_checks) >= OF_USERS - {"users in a unit"}
