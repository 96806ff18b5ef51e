"""Plans of sweeps that are written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raydp.sweep.store.state import Plan
from raydp.tasks.base import TaskFacts
from raydp.training.trial_plan import TrialPlan

SWEEP_ID = "a1b2" * 4


def plan_of_runs(
    trials: Sequence[TrialPlan] = (),
    privacy: Mapping[str, dict[str, Any]] | None = None,
    *,
    configurations: Sequence[TrialPlan] = (),
    sweep_id: str = SWEEP_ID,
) -> Plan:
    """A plan of given runs on 2,000 examples; each run's record has ε = 8 where none is given."""
    facts = TaskFacts(num_examples=2000, num_units=2000, privacy_unit="row", content_hash="0", num_tokens=1)
    records = {t.run_id: {"epsilon": 8.0, "delta": 1e-5} for t in trials} if privacy is None else privacy
    return Plan(
        sweep_id=sweep_id,
        facts=facts,
        delta=1e-5,
        trials=tuple(trials),
        privacy=records,
        configurations=tuple(configurations),
    )
