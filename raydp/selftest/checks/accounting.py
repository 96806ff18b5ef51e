"""Check the accountants' ε against closed forms and an independent composition.

The composition shares no code with the accountants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import fft, optimize, stats

from raydp.methods.dp import DPSGD
from raydp.plugins.registries import own_names, resolve
from raydp.privacy import Accountant, PoissonGaussian, PRVAccountant
from raydp.search_spaces.settings import NO_SETTINGS
from raydp.selftest.check_result import Check, check
from raydp.sweep.engine.recorder import cost_together
from raydp.training.trial_plan import TrialPlan

DELTA = 1e-5
NEARLY_ALL = 1 - 1e-9
"""A sample rate that uses the code for subsampled steps.

It changes δ of a full batch by a relative 1e-9 per step.
"""
MESH = 2e-4
"""Spacing of the losses in this module.

Each loss is rounded down, so 41 steps lose at most 0.0082 of ε.
"""
PRV_ERROR = 0.01
"""The error that prv adds to its bound for its approximation at ε >= 1.

Source: Gopi et al. 2021, Theorem 5.5.
"""


def accounting_checks() -> list[Check]:
    """Check every accountant of this distribution on one release and on several.

    1. ε of a T-fold Gaussian is at least the closed form (Balle and Wang 2018, Theorem 8), and not
       far above it.
    2. ε of one Poisson step is at least its closed form (Balle, Barthe and Gaboardi 2018, Theorem
       8).
    3. `prv` adds its error to the central estimate, which is not an upper bound by itself.
    4. ε of several models together, three of which have equal events, is at least the ε of the
       composition of all.
    """
    names = own_names("accountants")
    alone = [result for name in names for result in accountant_checks(name)]
    return [*alone, prv_error_check(), *map(together_check, names)]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return ε of one Gaussian mechanism whose ratio of sensitivity to noise std is μ."""

    def excess(epsilon: float) -> float:
        lower = math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - lower - delta)

    return float(optimize.brentq(excess, 0.0, 300.0, xtol=1e-12))


def step_epsilon(q: float, sigma: float, delta: float) -> float:
    """Return ε of one Poisson step: δ(ε) = q δ_Gauss(ln(1 + (e^ε - 1) / q))."""
    return math.log1p(q * math.expm1(gaussian_epsilon(1 / sigma, delta / q)))


def composed_at_least(runs: Sequence[tuple[float, float, int]], delta: float) -> float:
    """Return a lower bound on ε of all runs (q, σ, T) together, for the removal of a record.

    The privacy losses of one step are rounded down to a multiple of MESH, and convolved by a
    Fourier transform.
    """
    # The loss distribution of one step, on a circle that is large enough for all 41 steps.
    size = fft.next_fast_len(int(60 / MESH))
    spectrum = np.ones(size // 2 + 1, np.complex128)
    for q, sigma, steps in runs:
        x = np.linspace(-12 * sigma, 12 * sigma + 1, 200_001)
        below = (1 - q) * stats.norm.cdf(x / sigma) + q * stats.norm.cdf((x - 1) / sigma)
        # Grows in x, so the left end is a lower bound.
        loss = np.log1p(q * np.expm1((2 * x[:-1] - 1) / (2 * sigma**2)))
        masses = np.zeros(size)
        # A negative loss wraps around.
        np.add.at(masses, np.floor(loss / MESH).astype(np.int64), np.diff(below))
        # Convolution of all steps is a power in the frequency domain.
        spectrum *= fft.rfft(masses) ** steps
    masses = fft.irfft(spectrum, size)
    # Undo the circle: the upper third of the positions are negative losses.
    losses = MESH * ((np.arange(size) + size // 3) % size - size // 3)

    def excess(epsilon: float) -> float:
        # δ(ε) = Σ (1 - e^(ε - loss))+, as in the definition of a privacy loss distribution.
        above = losses > epsilon
        return float((masses[above] * -np.expm1(epsilon - losses[above])).sum() - delta)

    return float(optimize.brentq(excess, 0.0, losses.max() - 1, xtol=1e-9))


def accountant_checks(name: str) -> list[Check]:
    """Check an accountant's ε of one release against the exact ε."""
    many = PoissonGaussian(sample_rate=NEARLY_ALL, noise_multiplier=8.0, num_steps=40)
    one = PoissonGaussian(sample_rate=0.1, noise_multiplier=0.8, num_steps=1)
    whole = PoissonGaussian(sample_rate=1.0, noise_multiplier=8.0, num_steps=40)
    exact = gaussian_epsilon(math.sqrt(40) / 8, DELTA), step_epsilon(0.1, 0.8, DELTA)
    accountant: Accountant = resolve("accountants", name, field="accountant")()
    return [
        check(
            f"ε of {kind} ({name})",
            accountant.epsilon(event, DELTA) / truth,
            1 - 1e-7,
            1 + accountant.largest_excess,
            f"what the accountant says over the exact ε {truth:.5g} at δ = {DELTA:g}",
        )
        # The first two use different code of the accountants for the same mechanism.
        for kind, event, truth in (
            ("40 Gaussians", many, exact[0]),
            ("40 full batches", whole, exact[0]),
            ("one Poisson step", one, exact[1]),
        )
    ]


def prv_error_check() -> Check:
    """Check the difference between `prv`'s ε and the exact ε."""
    one = PoissonGaussian(sample_rate=0.1, noise_multiplier=0.8, num_steps=1)
    added = (PRVAccountant().epsilon(one, DELTA) - step_epsilon(0.1, 0.8, DELTA)) / PRV_ERROR
    return check(
        "error that is added (prv)",
        added,
        0.5,
        2.2,
        f"ε less the exact ε, over the error {PRV_ERROR:g}",
    )


def together_check(name: str) -> Check:
    """Check ε of four models together, three of which have equal events.

    The three differ only in seed and learning rate.
    """
    # A fault that drops equal events, or merges by learning rate, would state too small an ε.
    equal = [(0.1, 1.6, 12, 0.01), (0.1, 1.6, 12, 0.02), (0.1, 1.6, 12, 0.01)]
    runs = [*equal, (0.25, 2.5, 5, 0.01)]
    trials = [
        TrialPlan(
            run_id=f"selftest/together/{k}",
            batch_size=round(1000 * q),
            num_steps=steps,
            learning_rate=rate,
            seed=k,
            num_examples=1000,
            noise_multiplier=sigma,
        )
        for k, (q, sigma, steps, rate) in enumerate(runs)
    ]
    least = composed_at_least([run[:3] for run in runs], DELTA)
    stated = cost_together({NO_SETTINGS: DPSGD()}, trials, DELTA, name)["epsilon"]
    assert stated is not None, "the accountant has an answer"
    return check(
        f"ε of four models together ({name})",
        stated / least,
        1,
        1.02 + resolve("accountants", name).largest_excess,
        f"what is stated over {least:.5g}, a lower bound on the composition of all four",
    )
