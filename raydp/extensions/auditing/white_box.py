"""A white-box audit: how well an attacker who sees every noisy gradient detects a record."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats

from raydp.methods.dp import DPSGD
from raydp.methods.method import Method
from raydp.privacy.accounting.events import PrivacyTarget
from raydp.privacy.accounting.gdp import gaussian_epsilon, gaussian_mu
from raydp.selftest.check_result import Check, FurtherChecks, check
from raydp.selftest.linear import LinearTask, linear_training_context
from raydp.selftest.observe import observed_plan, summed_updates
from raydp.training.comm import LocalComm

TARGET = PrivacyTarget(epsilon=4.0, delta=1e-5)
CONFIDENCE = 0.999
"""Confidence in both error rates together, and so in the lower bound on ε."""
FOUND = 0.6
"""Share of the stated ε that the audit must reach.

An audit that reaches less would not detect missing noise.
"""
NUM_RUNS, NUM_STEPS, NUM_EXAMPLES, WIDTH = 2000, 2, 4, 6
MAX_GRAD_NORM = 0.5
EVERY = 100
"""Number of runs after which progress is reported."""


def audit_check(
    num_runs: int | None = None, progress: Callable[[float], object] = lambda share: None
) -> Check:
    """Audit DP-SGD: compare its stated ε with a lower bound from runs with and without a canary.

    The runs are calibrated to the stated ε. The canary's clipped gradient is c along a coordinate
    that no other example touches. The attacker adds up this coordinate of the noisy gradients and
    says "present" above the midpoint between the two expectations. At q = 1 training is one
    Gaussian mechanism with μ = sqrt(T) / σ, and the two error rates bound μ from below.

    Args:
        num_runs: number of runs with the canary, and number of runs without; NUM_RUNS by default.
        progress: called with the share of the runs that are done, every 100 runs.

    Source: Nasr et al. 2023 (white-box audit of DP-SGD in terms of μ-GDP).
    """
    num_runs = NUM_RUNS if num_runs is None else num_runs
    # q = 1: training is one Gaussian mechanism, so no bound is lost to subsampling.
    sigma = math.sqrt(NUM_STEPS) / gaussian_mu(TARGET)
    threshold = NUM_STEPS * MAX_GRAD_NORM / 2  # fixed before any run
    guesses: tuple[list[bool], list[bool]] = [], []
    # Both worlds, with noise of their own in every run.
    for canary in (False, True):
        for run in range(num_runs):
            guesses[canary].append(_attack_statistic(run, sigma, canary) > threshold)
            if (run + 1) % EVERY == 0:
                progress((canary * num_runs + run + 1) / (2 * num_runs))
    false_positives, false_negatives = sum(guesses[0]), num_runs - sum(guesses[1])
    mu = mu_lower_bound(false_positives, false_negatives, num_runs)
    return check(
        "audit with a canary",
        gaussian_epsilon(mu, TARGET.delta),
        FOUND * TARGET.epsilon,
        TARGET.epsilon,
        f"lower bound on ε at δ = {TARGET.delta:g} ({CONFIDENCE:.1%} confidence) where "
        f"{TARGET.epsilon:g} is stated; {num_runs} runs each, {false_positives} false positives, "
        f"{false_negatives} false negatives",
    )


class WhiteBoxChecks(FurtherChecks):
    """The audit of DP-SGD, with a canary in the gradients, as a check of the self-test."""

    title = "audit with a canary"

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Audit DP-SGD, whatever the spec's method is."""
        return [audit_check(progress=progress)]


CHECKS = WhiteBoxChecks()


def mu_lower_bound(false_positives: int, false_negatives: int, num_runs: int) -> float:
    """Return a lower bound on μ, Φ⁻¹(1 - FPR) - Φ⁻¹(FNR), and at least 0.

    Both rates are taken at their Clopper-Pearson upper bounds.

    Source: Dong, Roth and Su 2022, equation 6: FNR >= Φ(Φ⁻¹(1 - FPR) - μ).
    """
    # Each rate at half of the error probability, so that both hold together (a union bound).
    level = (1 - CONFIDENCE) / 2
    fpr, fnr = (
        1.0 if k == num_runs else stats.beta.isf(level, k + 1, num_runs - k)
        for k in (false_positives, false_negatives)
    )
    return max(0.0, float(stats.norm.isf(fpr) - stats.norm.ppf(fnr)))


def _attack_statistic(run: int, sigma: float, canary: bool) -> float:
    """Train one run and return the sum, over its steps, of the noisy gradients' first coordinate.

    Args:
        run: number of the run, which its noise depends on.
        sigma: noise multiplier σ.
        canary: whether the canary is trained on. If not, a record with gradient 0 replaces it,
            because n and b are public and must not change.
    """
    plan = observed_plan(
        f"selftest/audit/{canary}/{run}",
        batch_size=NUM_EXAMPLES,
        num_steps=NUM_STEPS,
        num_examples=NUM_EXAMPLES,
        noise_multiplier=sigma,
    )
    inputs = torch.ones(NUM_EXAMPLES, WIDTH)
    inputs[:, 0] = 0  # the canary's coordinate
    inputs[0] = 0
    inputs[0, 0] = 3 * MAX_GRAD_NORM * canary  # to be clipped to c
    task = LinearTask(inputs, torch.ones(NUM_EXAMPLES, 1))
    method = DPSGD(max_grad_norm=MAX_GRAD_NORM)
    updates = summed_updates(method, plan, linear_training_context(WIDTH, 1, 1), task, LocalComm())
    return float(np.sum([float(update[0]) for update in updates]))
