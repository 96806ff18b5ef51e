"""Run all checks of the self-test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from raydp.methods.dp import DPSGD
from raydp.methods.output_perturbation import OutputPerturbation
from raydp.methods.pate import PATE
from raydp.selftest.base import Check
from raydp.selftest.checks.accounting import accounting_checks
from raydp.selftest.checks.adaptive import adaptive_checks
from raydp.selftest.checks.audit import audit_check
from raydp.selftest.checks.choice import choice_checks
from raydp.selftest.checks.choice_profiles import choice_profile_checks
from raydp.selftest.checks.cuts import cut_checks
from raydp.selftest.checks.descent import descent_checks
from raydp.selftest.checks.divisions import division_checks
from raydp.selftest.checks.draws import draw_checks
from raydp.selftest.checks.independence import independence_checks
from raydp.selftest.checks.noise import noise_checks
from raydp.selftest.checks.release import release_checks
from raydp.selftest.checks.sampling import sampling_checks
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.selftest.checks.sweeps import ACCOUNTANT, sweep_checks
from raydp.selftest.checks.votes import vote_checks
from raydp.selftest.observe import with_fixed_threshold
from raydp.selftest.spec_subject import kinds_of_runs, spec_subjects
from raydp.selftest.subjects import Subject, toy_subjects
from raydp.spec.document import SweepSpec


def run_selftest(spec: SweepSpec | None, progress: Callable[[str], None] | None = None) -> list[Check]:
    """Check that training does what its ε assumes, and that ε is correct; see the modules in `checks`.

    Args:
        spec: also check its task and model for sensitivity, and its method for noise and sampling. The model has two
            layers of each kind then (`raydp.models.reduced`). If its space varies further fields, sensitivity is
            checked for each combination of their values that are no numbers. Output perturbation and PATE are checked
            on generated examples instead.
        progress: called with the name of the current check.

    Returns:
        The checks, all of which should pass. They use a fixed key, so the same code gives the same figures.

    Raises:
        ValueError: the spec's model, data or method cannot be used.
    """
    with _one_thread():
        return _all_checks(spec, progress or (lambda what: None))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread during the block. The checks' products are so small that threads would mostly wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _all_checks(spec: SweepSpec | None, say: Callable[[str], None]) -> list[Check]:
    """Run all checks. Before each group, `say` is called with its name."""
    toys = toy_subjects()
    of_spec = list[Subject]()
    # Choose the method of each group of checks: the spec's own if it fits, else a default.
    own = None if spec is None else spec.method.params
    released = own if isinstance(own, OutputPerturbation) else OutputPerturbation()
    asked = own if isinstance(own, PATE) else PATE(threshold=30.0, threshold_noise=1.5)
    in_steps = own is not released and own is not asked  # noise is in the updates
    if spec is not None and in_steps:
        say("reading the spec's data and model")
        for kind in kinds_of_runs(spec):
            of_spec += spec_subjects(kind)
    # Check the steps of training, then the other methods, then sweeps and accountants.
    checks: list[Check] = []
    for subject in [*toys, *of_spec]:
        say(f"sensitivity: {subject.name}")
        checks += sensitivity_checks(subject)
    say("independence of examples")
    for subject in [*toys[:1], *of_spec]:
        checks += independence_checks(subject)
    chosen = DPSGD() if own is None or not in_steps else own
    method = with_fixed_threshold(chosen)
    say("noise")
    checks += noise_checks(method)
    say("noise that comes twice")
    checks += draw_checks(method)
    say("adaptive threshold")
    checks += adaptive_checks(chosen)
    say("workers, resumes and kept hidden states")
    checks += cut_checks(chosen)
    say("sampling")
    checks += sampling_checks(method)
    say("noise on trained weights")
    checks += release_checks(released)
    checks += descent_checks(released)
    say("votes of teachers")
    checks += vote_checks(asked)
    say("records and keys of a sweep")
    checks += sweep_checks(chosen, ACCOUNTANT if spec is None else spec.privacy.accountant)
    say("accountants")
    checks += accounting_checks()
    say("price of a choice")
    checks += choice_checks()
    checks += choice_profile_checks()
    say("held-out rows and users")
    checks += division_checks()
    say("audit with a canary")
    return [*checks, audit_check(progress=lambda share: say(f"audit with a canary, {share:.0%}"))]
