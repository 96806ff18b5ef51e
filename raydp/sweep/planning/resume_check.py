"""At a resume: what trains is what the records say, and the records follow from the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from raydp.privacy import PrivacyRecord, require_unedited
from raydp.spec.document import SweepSpec
from raydp.sweep.planning.plan import SweepPlan
from raydp.sweep.policy import policy_of
from raydp.sweep.store.state import Plan
from raydp.training.trial_plan import TrialPlan


def check_kept(kept: Plan, now: SweepPlan, spec: SweepSpec) -> None:
    """Check that a sweep's plan holds the runs and the guarantees that its spec gives.

    The runs keep the noise multipliers of the sweep's start, even if a new version of a library
    calibrates others. ε of such noise is computed again.

    Raises:
        ValueError: data, secrets or base weights are not those that the sweep was started with, or
            a run or a record of the plan is not that of the spec.
    """
    # A run's id is the hash of data, secrets, base weights and settings.
    if {t.run_id for t in kept.trials} != {t.run_id for t in now.trials}:
        raise ValueError(
            "SPEC must give the runs that the sweep was started with, got others: data, secrets or "
            "base weights have changed. Restore them, or give the sweep a new name."
        )
    try:
        if kept.delta != now.delta:
            raise ValueError(f"delta must be {now.delta}, got {kept.delta}")
        _check_trials(kept.trials, {trial.run_id: trial for trial in now.trials})
        _check_trials(kept.configurations, {trial.run_id: trial for trial in now.configurations})
        methods = {
            trial.settings: spec.of_run(trial.settings).method.params for trial in kept.trials
        }
        # Each record must account for the event that its run trains, and its ε must still hold.
        checked: set[tuple[int, int]] = set()
        for trial in kept.trials:
            record, current = kept.privacy[trial.run_id], now.privacy[trial.run_id]
            event = methods[trial.settings].event(trial, trial.noise_multiplier)
            if record.mechanism.event != event:
                raise ValueError(
                    f"run {trial.run_id} must have a record of {event}, got "
                    f"{record.mechanism.event}"
                )
            # Compare equal pairs once, because the accountant takes seconds.
            if (same := (id(record), id(current))) not in checked:
                require_unedited(record, current, partial(_epsilon, kept, record, spec))
                checked.add(same)
    except ValueError as error:
        raise ValueError(
            f"SWEEP must have a plan.json as its spec gives it, got {kept.sweep_id!r} with other "
            f"content ({error}). Restore the file, resume with the version that started the sweep, "
            "or start a new sweep."
        ) from error


def _check_trials(kept: tuple[TrialPlan, ...], now: Mapping[str, TrialPlan]) -> None:
    """Check that runs differ from the spec's in their noise and an imported model's place alone."""
    for trial in kept:
        current = now.get(trial.run_id)
        if current is None:
            raise ValueError(f"configuration {trial.run_id} must be of the spec, got another one")
        expected = replace(current, noise_multiplier=trial.noise_multiplier, source=trial.source)
        written = trial.to_json()
        for name, value in expected.to_json().items():
            if written[name] != value:
                raise ValueError(
                    f"{name} of run {trial.run_id} must be {value!r}, got {written[name]!r}"
                )


def _epsilon(kept: Plan, record: PrivacyRecord, spec: SweepSpec) -> float:
    """Return ε of a kept record's noise: of the run, or of the choice among configurations."""
    accounted = record.accounted
    configurations = [
        spec.of_run(t.settings).method.params.event(t, t.noise_multiplier)
        for t in kept.configurations
    ]
    return policy_of(spec).epsilon(
        record.mechanism.event, configurations, accounted.delta, accounted.accountant
    )
