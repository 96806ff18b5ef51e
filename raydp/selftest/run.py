"""Run all checks of the self-test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from raydp.methods.dp import DPSGD
from raydp.plugins.registries import names, own_names, resolve
from raydp.selftest.check_result import Check, FurtherChecks
from raydp.selftest.checks.accounting import accounting_checks
from raydp.selftest.checks.adaptive import adaptive_checks
from raydp.selftest.checks.cuts import cut_checks
from raydp.selftest.checks.divisions import division_checks
from raydp.selftest.checks.draws import draw_checks
from raydp.selftest.checks.independence import independence_checks
from raydp.selftest.checks.noise import noise_checks
from raydp.selftest.checks.sampling import sampling_checks
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.selftest.checks.sweeps import ACCOUNTANT, sweep_checks
from raydp.selftest.observe import with_fixed_threshold
from raydp.selftest.spec_subject import kinds_of_runs, spec_subjects
from raydp.selftest.subjects import Subject, toy_subjects
from raydp.spec.document import SweepSpec


def run_selftest(
    spec: SweepSpec | None, progress: Callable[[str], None] | None = None
) -> list[Check]:
    """Check that training does what its ε assumes, and that ε is correct (see `checks`).

    Args:
        spec: also check its task and model for sensitivity, and its method for noise and sampling.
            The model has two layers of each kind then (`raydp.models.reduced`). If its space varies
            further fields, sensitivity is checked for each combination of their values that are no
            numbers. A method whose noise is not in its steps is checked by `FurtherChecks` instead.
        progress: called with the name of the current check.

    Returns:
        The checks, all of which should pass. They use a fixed key, so the same code gives the same
        figures.

    Raises:
        ValueError: the spec's model, data or method cannot be used.
    """
    with _one_thread():
        return _all_checks(spec, progress or (lambda what: None))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread in the block: for the checks' small products, threads would wait."""
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
    further: dict[str, FurtherChecks] = {
        name: resolve("selftest", name) for name in names("selftest")
    }
    measuring = {name for name, each in further.items() if own is not None and each.measure(own)}
    # Another package's method or checks cannot switch off the checks of the steps.
    trusted = spec is not None and spec.method.name in own_names("methods")
    in_steps = not (trusted and measuring.intersection(own_names("selftest")))
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
    say("workers and resumes")
    checks += cut_checks(chosen)
    say("sampling")
    checks += sampling_checks(method)
    say("records and keys of a sweep")
    checks += sweep_checks(chosen, ACCOUNTANT if spec is None else spec.privacy.accountant)
    say("accountants")
    checks += accounting_checks()
    say("held-out rows and users")
    checks += division_checks()
    # What extensions check takes the longest, so it comes last.
    for name, each in further.items():
        say(each.title)
        checks += each.checks(own if name in measuring else None, partial(_say_share, say, each))
    return checks


def _say_share(say: Callable[[str], None], checks: FurtherChecks, share: float) -> None:
    say(f"{checks.title}, {share:.0%}")
