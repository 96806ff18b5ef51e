"""The privacy curve of one Gaussian mechanism, in closed form (μ-GDP)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr

if TYPE_CHECKING:
    from raydp.privacy.accounting.events import PrivacyTarget


def gaussian_deltas(mu: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the smallest δ at each ε >= 0 of the Gaussian mechanism with parameter μ.

    Args:
        mu: μ > 0, sensitivity over the noise's standard deviation.
        epsilons: [k], each >= 0.

    Returns:
        [k] δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).

    Source: Balle and Wang 2018 (Theorem 8); Dong, Roth and Su 2022 (Corollary 1).
    """
    upper = log_ndtr(mu / 2 - epsilons / mu)
    lower = log_ndtr(-mu / 2 - epsilons / mu)
    # One product, because in the tail the two terms agree to many digits and their difference would
    # be noise.
    return np.asarray(-np.exp(upper) * np.expm1(np.minimum(epsilons + lower - upper, 0.0)))


def gaussian_mu(target: PrivacyTarget) -> float:
    """Return the μ of the Gaussian mechanism with δ(target.epsilon) = target.delta, to 1e-12."""
    # Brent's method in ln μ and ln δ, where the curve is close to a line.
    epsilon = np.array([target.epsilon])

    def excess(log_mu: float) -> float:
        delta = float(gaussian_deltas(float(np.exp(log_mu)), epsilon)[0])
        return float(np.log(max(delta, 1e-300)) - np.log(target.delta))

    return float(np.exp(brentq(excess, np.log(1e-9), np.log(1e6), xtol=1e-12)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest ε >= 0 at which the Gaussian mechanism with this μ >= 0 satisfies δ."""

    def excess(epsilon: float) -> float:
        return float(gaussian_deltas(mu, np.array([epsilon]))[0]) - delta

    # Without a difference between the data sets, or with δ(0) already small enough, ε is 0.
    if mu <= 0 or excess(0.0) <= 0:
        return 0.0
    # δ falls in ε, so doubling finds an upper end, and Brent's method the root between.
    high = mu * mu / 2 + 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(excess, 0.0, high, xtol=1e-12))
