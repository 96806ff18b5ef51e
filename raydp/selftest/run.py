"""All checks of the self-test, one after another."""

from __future__ import annotations

from collections.abc import Callable

from raydp.methods.dp import DPSGD
from raydp.selftest.audit import audit_check
from raydp.selftest.base import Check
from raydp.selftest.noise import noise_checks
from raydp.selftest.observe import with_fixed_threshold
from raydp.selftest.sampling import sampling_checks
from raydp.selftest.sensitivity import sensitivity_checks
from raydp.selftest.spec_subject import spec_subject
from raydp.selftest.subjects import toy_subjects
from raydp.spec import SweepSpec


def run_selftest(spec: SweepSpec | None, progress: Callable[[str], None] | None = None) -> list[Check]:
    """Check that training does what its ε assumes: sensitivity, noise, sampling and an audit of the whole.

    Args:
        spec: also checks its own task and model for sensitivity, and its own method for noise and sampling.
        progress: called with what is being checked.

    Returns:
        The checks, of which all should have passed. They use a fixed key, so the same code gives the same figures.

    Raises:
        ValueError: the spec's model, data or method cannot be used.
    """
    say = progress or (lambda what: None)
    subjects = toy_subjects()
    if spec is not None:
        say("reading the spec's data and model")
        subjects.append(spec_subject(spec))
    checks: list[Check] = []
    for subject in subjects:
        say(f"sensitivity: {subject.name}")
        checks += sensitivity_checks(subject)
    method = DPSGD() if spec is None else with_fixed_threshold(spec.method.params)
    say("noise")
    checks += noise_checks(method)
    say("sampling")
    checks += sampling_checks(method)
    say("audit with a canary")
    return [*checks, audit_check()]
