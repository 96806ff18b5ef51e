"""Plans of sweeps that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydp.privacy import (
    AccountedEpsilon,
    Event,
    Mechanism,
    PoissonGaussian,
    PrivacyRecord,
    privacy_record,
)
from raydp.privacy.accounting.documents import Guarantee
from raydp.sweep.store.state import Plan
from raydp.tasks.task import TaskFacts
from raydp.training.trial_plan import TrialPlan

SWEEP_ID = "a1b2" * 4
NO_GUARANTEE: Guarantee = {
    "accountant": "pld",
    "profile": [],
    "gdp_mu": None,
    "gdp_mu_reason": "none",
    "attack": {"accountant": "pld", "reason": "none"},
}
"""Says nothing, for cards of which only the record is of interest."""


def record_of(event: Event | None = None, **accounted: Any) -> PrivacyRecord:
    """A record with ε = 8 and δ = 1e-5 where nothing else is given."""
    event = event or PoissonGaussian(sample_rate=0.1, noise_multiplier=1.0, num_steps=5)
    known: dict[str, Any] = {
        "epsilon": 8.0, "delta": 1e-5, "target_epsilon": None, "accountant": "rdp", "accountant_version": "x",
    }  # fmt: skip
    return privacy_record(
        accounted=AccountedEpsilon(**(known | accounted)),
        mechanism=Mechanism(event=event, max_grad_norm=0.1),
        unit="row",
        noise_key="secret",
    )


def plan_of_runs(
    trials: Sequence[TrialPlan] = (),
    privacy: Mapping[str, PrivacyRecord] | None = None,
    *,
    configurations: Sequence[TrialPlan] = (),
    sweep_id: str = SWEEP_ID,
) -> Plan:
    """Return a plan of given runs on 2,000 examples; each run's record has ε = 8 where none is
    given."""
    facts = TaskFacts(
        num_examples=2000, num_units=2000, privacy_unit="row", content_hash="0", num_tokens=1
    )
    records = {t.run_id: record_of(_event_of(t)) for t in trials} if privacy is None else privacy
    return Plan(
        sweep_id=sweep_id,
        facts=facts,
        delta=1e-5,
        trials=tuple(trials),
        privacy=records,
        configurations=tuple(configurations),
    )


def _event_of(trial: TrialPlan) -> PoissonGaussian:
    """Return the event of DP-SGD; of a run without noise, one with σ = 1 that no run has
    trained."""
    return PoissonGaussian(
        sample_rate=min(1.0, trial.batch_size / trial.num_examples),
        noise_multiplier=trial.noise_multiplier or 1.0,
        num_steps=trial.num_steps,
    )
