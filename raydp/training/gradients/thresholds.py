"""Scaling of an example's gradient, and its threshold: fixed, or a quantile of the norms."""

from __future__ import annotations

import math

import torch

from raydp.training.noise.lattice import noisy_count
from raydp.training.noise.stream import KeyedStream

GAMMA = 0.01
"""Constant of AUTO-S that is added to the norm; the default of Bu et al. 2023, section 4."""


class Clipping:
    """Flat clipping: an example's gradient is scaled by min(1, c / norm).

    Subclasses: `AutomaticClipping` and `AdaptiveClipping`. Source: Abadi et al. 2016, Algorithm 1.

    Args:
        max_grad_norm: c > 0; inf if nothing is clipped.

    Guarantee:
        A scaled gradient has a norm of at most max_grad_norm. This also holds in the subclasses.
    """

    def __init__(self, max_grad_norm: float) -> None:
        self.max_grad_norm = max_grad_norm

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        """Return [B] the factors of gradients with norms [B]."""
        # min(1, c / norm) without a division by 0.
        return self.max_grad_norm / norms.clamp(min=self.max_grad_norm)

    def update(self, unclipped: float, drawn: float, stream: KeyedStream, step: int) -> None:
        """Move the threshold, after each step, by the numbers of unclipped and drawn examples."""


class AutomaticClipping(Clipping):
    """Automatic clipping: a gradient is scaled by c / (norm + 0.01), even if it grows.

    Source: Bu et al. 2023, AUTO-S.
    """

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return self.max_grad_norm / (norms + GAMMA)


class AdaptiveClipping(Clipping):
    """Flat clipping whose threshold follows a quantile of the norms.

    Source: Andrew et al. 2021, Algorithm 1.

    Args:
        max_grad_norm: c_0, the threshold of the first step.
        quantile: share of examples that the threshold should leave unclipped.
        learning_rate: rate of the geometric update c ← c · exp(-learning_rate · (share -
            quantile)).
        count_noise_std: standard deviation of the noise on the count of unclipped examples, in
            examples.
        batch_size: expected batch size b.

    Guarantee:
        With noise of std σ_g c_t on the sum, where σ_g is
        `gradient_noise_multiplier(σ, count_noise_std)`, sum and count together are one Gaussian
        mechanism of noise multiplier σ (Andrew et al. 2021, Theorem 1).
    """

    RANGE = (1e-12, 1e12)
    """Range of the threshold, so that fp32 can hold it; both ends are public."""

    def __init__(
        self,
        max_grad_norm: float,
        *,
        quantile: float,
        learning_rate: float,
        count_noise_std: float,
        batch_size: int,
    ) -> None:
        super().__init__(max_grad_norm)
        self.quantile = quantile
        self.learning_rate = learning_rate
        self.count_noise_std = count_noise_std
        self.batch_size = batch_size

    def noisy_count(self, unclipped: float, drawn: float, stream: KeyedStream, step: int) -> float:
        """Return Σ_i (1[norm_i <= c] - 1/2) + noise over the drawn examples.

        One example changes the sum by 1/2, not 1.

        Every rank draws the same noise, so no rank needs to send it. Count and noise lie on a
        lattice.
        """
        noise = float(stream.normal(1, step=step, purpose="count")[0]) * self.count_noise_std
        # Centred, so that one example changes the count by 1/2 in either case.
        return noisy_count(unclipped - drawn / 2, noise)

    def update(self, unclipped: float, drawn: float, stream: KeyedStream, step: int) -> None:
        # Divided by the expected batch size: the drawn one is not public.
        share = self.noisy_count(unclipped, drawn, stream, step) / self.batch_size + 0.5
        smallest, largest = (math.log(bound) for bound in self.RANGE)
        # The geometric update, in logarithms, so that the threshold stays positive.
        moved = math.log(self.max_grad_norm) - self.learning_rate * (share - self.quantile)
        self.max_grad_norm = math.exp(min(max(moved, smallest), largest))


def gradient_noise_multiplier(noise_multiplier: float, count_noise_std: float) -> float:
    """Return the gradient's noise multiplier that leaves room for the count.

    It is (σ^-2 - (2 σ_b)^-2)^(-1/2).

    Args:
        noise_multiplier: σ of the accounted mechanism.
        count_noise_std: σ_b > σ / 2.

    Source: Andrew et al. 2021, Theorem 1. The centred count has sensitivity 1/2.
    """
    assert 2 * count_noise_std > noise_multiplier, "the count must not spend everything"
    of_gradient: float = (noise_multiplier**-2 - (2 * count_noise_std) ** -2) ** -0.5
    return of_gradient
