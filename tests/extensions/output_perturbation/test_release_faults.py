"""Faults of the sensitivity of trained weights and of the noise on them, each of which a check of
the self-test finds."""

from __future__ import annotations

from typing import Any

import pytest

from raydp.extensions.output_perturbation import logistic
from raydp.extensions.output_perturbation import method as module
from raydp.extensions.output_perturbation.descent_checks import descent_checks
from raydp.extensions.output_perturbation.logistic import LogisticDescent
from raydp.extensions.output_perturbation.method import OutputPerturbation
from raydp.extensions.output_perturbation.release_checks import release_checks
from raydp.training.noise import lattice
from tests.selftest.faults import claiming, rewrite
from tests.selftest.test_faults import failed


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


@pytest.mark.parametrize(
    "rate", ["2 / self.smoothness", "4 / (self.smoothness + 2 * self.weight_decay)"]
)
def test_a_step_size_that_the_sensitivity_does_not_hold_for(
    monkeypatch: pytest.MonkeyPatch, rate: str
) -> None:
    scope: dict[str, Any] = {}
    exec(f"def largest(self): return {rate}", vars(logistic) | scope, scope)
    monkeypatch.setattr(LogisticDescent, "largest_learning_rate", property(scope["largest"]))
    assert "step at the largest learning rate" in failed(descent_checks(OutputPerturbation()))


def test_an_event_of_trained_weights_that_claims_5_percent_more_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claiming(monkeypatch, OutputPerturbation, noise_multiplier=lambda sigma: 1.05 * sigma)
    assert "noise variance" in failed(release_checks(OutputPerturbation()))


def test_noise_that_is_narrower_than_sigma(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (lattice, module):
        monkeypatch.setattr(place, "NOISE_WIDENING", 0.95)
    assert "noise variance" in failed(release_checks(OutputPerturbation()))


@pytest.mark.parametrize(
    "method",
    [
        OutputPerturbation(max_input_norm=1e3, weight_decay=1e3),
        OutputPerturbation(weight_decay=0),
    ],
    ids=["strong", "none"],
)
def test_without_a_fault_no_weight_decay_fails(method: OutputPerturbation) -> None:
    assert not failed(descent_checks(method))
