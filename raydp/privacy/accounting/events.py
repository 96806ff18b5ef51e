"""Events: what a training run releases, as pure data.

Accountants read them, and a method's sampler must match them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MAX_NUM_STEPS = 10_000_000
"""Largest number of steps of one run. Runs that are accounted together may have more."""


@dataclass(frozen=True, kw_only=True)
class PoissonGaussian:
    """A Gaussian mechanism on Poisson samples, composed with itself.

    DP-SGD and DP-Adam are such mechanisms.

    Every step takes each record with probability sample_rate, independently, sums vectors of norm
    at most 1 (in units of max_grad_norm) and adds N(0, noise_multiplier² I). Two data sets are
    neighbours if one is the other plus one record. Shuffled or fixed-size batches are a different
    mechanism: do not describe them with this event.

    Args:
        sample_rate: q = b/n, in (0, 1].
        noise_multiplier: σ > 0, noise standard deviation over max_grad_norm.
        num_steps: T >= 1.

    Raises:
        ValueError: an argument is out of its range.

    Source: Abadi et al. 2016 (Algorithm 1); Mironov, Talwar and Zhang 2019 (Section 3).
    """

    sample_rate: float
    noise_multiplier: float
    num_steps: int

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise ValueError(
                f"sample_rate must be > 0 and <= 1, got {self.sample_rate}. It is batch_size / "
                "num_examples."
            )
        if not (self.noise_multiplier > 0 and math.isfinite(self.noise_multiplier)):
            raise ValueError(
                f"noise_multiplier must be > 0 and finite, got {self.noise_multiplier}. "
                "A run without noise is NonPrivateEvent()."
            )
        if self.num_steps < 1 or self.num_steps != int(self.num_steps):
            raise ValueError(
                f"num_steps must be an integer >= 1, got {self.num_steps}. It counts noisy updates."
            )

    def with_noise(self, noise_multiplier: float) -> PoissonGaussian:
        """Return the same sampling and steps with another noise multiplier σ > 0."""
        return replace(self, noise_multiplier=noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class NonPrivateEvent:
    """A run without a privacy guarantee: every accountant gives it epsilon = inf."""

    def with_noise(self, noise_multiplier: float) -> NonPrivateEvent:
        """Return the event itself: no noise gives it a guarantee."""
        return self


Event = PoissonGaussian | NonPrivateEvent


@dataclass(frozen=True, kw_only=True)
class PrivacyTarget:
    """The (ε, δ) that a run must satisfy.

    Args:
        epsilon: > 0, finite.
        delta: in (0, 1).

    Raises:
        ValueError: an argument is out of its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise ValueError(
                f"target_epsilon must be > 0 and finite, got {self.epsilon}. For a run without "
                "noise use a non-private method."
            )
        check_delta(self.delta, field="target_delta")


def check_num_steps(num_steps: float, *, field: str = "num_steps") -> None:
    """Raise ValueError for more steps than one run may have."""
    if num_steps > MAX_NUM_STEPS:
        raise ValueError(
            f"{field} must be at most {MAX_NUM_STEPS:,}, got {num_steps:,}. The accountants' "
            "rounding is known up to there; train with fewer steps, or larger batches."
        )


def check_delta(delta: float, *, field: str = "delta") -> None:
    """Raise ValueError unless 0 < delta < 1."""
    if not 0 < delta < 1:
        raise ValueError(
            f"{field} must be > 0 and < 1, got {delta}. Usual is n^-1.1 for n records."
        )
