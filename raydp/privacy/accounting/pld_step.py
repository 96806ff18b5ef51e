"""The privacy loss distribution of one Poisson-subsampled Gaussian step, in arrays.

The result is dp_accounting's. dp_accounting inverts the privacy loss by a call of Python for each
of some 100,000 losses, which took two thirds of the time of a composition. Here the inversion is
one array operation; everything else is dp_accounting's.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

from raydp.privacy.accounting.events import PoissonGaussian

_FEW_STEPS = 1000
"""Up to this number of steps, the library's own choice of form is fast (see `of_many_steps`)."""


def one_step(event: PoissonGaussian, interval: float) -> PrivacyLossDistribution:
    """Return the distribution of one step's loss, for an example removed and for one added.

    Args:
        event: its noise multiplier σ and sample rate q count.
        interval: spacing of the grid of losses.

    Source: Doroshenko et al. 2022, Algorithm 1 (Connect-the-Dots), which is never optimistic.
    """
    adjacencies = [AdjacencyType.REMOVE, AdjacencyType.ADD]
    if event.sample_rate == 1:
        adjacencies = adjacencies[:1]  # both directions are the same
    losses = (
        GaussianPrivacyLoss(
            event.noise_multiplier, sampling_prob=event.sample_rate, adjacency_type=adjacency
        )
        for adjacency in adjacencies
    )
    return PrivacyLossDistribution(*(_discretised(loss, interval) for loss in losses))


def of_many_steps(step: PrivacyLossDistribution, num_steps: int) -> PrivacyLossDistribution:
    """Return one step's distribution in the form that the library can compose many times quickly.

    Before composing many steps, the library turns a short list of losses into an array. It decides
    by the number (length of the list) ** num_steps, which has as many digits as there are steps.
    Python computes this number for minutes and cannot be interrupted meanwhile. So the array is
    made here.
    """
    if num_steps <= _FEW_STEPS:
        return step
    parts = [step._pmf_remove] if step._symmetric else [step._pmf_remove, step._pmf_add]
    return PrivacyLossDistribution(*(part.to_dense_pmf() for part in parts))


def _discretised(loss: GaussianPrivacyLoss, interval: float) -> PLDPmf:
    """Return the distribution on multiples of `interval`, from δ at each multiple."""
    # Round outwards, so that the grid covers all losses that the library keeps.
    bounds = loss.connect_dots_bounds()
    low, high = (
        math.floor(bounds.epsilon_lower / interval),
        math.ceil(bounds.epsilon_upper / interval),
    )
    # δ at every multiple is exact; Connect-the-Dots turns it into a distribution that is never
    # optimistic.
    deltas = step_deltas(loss, np.arange(low, high + 1) * interval)
    return create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, deltas)


def step_deltas(loss: GaussianPrivacyLoss, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [k] δ of one step at [k] epsilons of any sign, as `loss.get_delta_for_epsilon` does.

    The loss falls in the outcome x. So δ(ε) is the probability that x lies below the outcome x(ε)
    whose loss is ε, minus exp(ε) times this probability under the other data set. A small error of
    x(ε) changes δ by its square only, because x(ε) maximises this difference.
    """
    q, variance = loss.sampling_prob, loss.standard_deviation**2
    # The loss of a removed example is above ln(1 - q), and the loss of an added one below -ln(1 -
    # q).
    end = np.log1p(-q) if q < 1 else -math.inf
    if loss.adjacency_type == AdjacencyType.REMOVE:
        # Outside the range of losses, δ(ε) is 1 - e^ε for a removed example and 0 for an added one.
        inside, deltas = epsilons > end, np.maximum(-np.expm1(epsilons), 0.0)
        outcomes = -0.5 - variance * _without_sampling(epsilons[inside], q)
    else:
        inside, deltas = epsilons < -end, np.zeros(len(epsilons))
        outcomes = 0.5 + variance * _without_sampling(-epsilons[inside], q)
    # δ(ε) = P[x < x(ε)] - e^ε P'[x < x(ε)], with the second factor in logarithms against overflow.
    deltas[inside] = loss.mu_upper_cdf(outcomes) - np.exp(
        epsilons[inside] + loss.mu_lower_log_cdf(outcomes)
    )
    clipped: NDArray[np.float64] = deltas.clip(0.0, 1.0)
    return clipped


def _without_sampling(losses: NDArray[np.float64], q: float) -> NDArray[np.float64]:
    """Return the losses ln(1 + (exp(loss) - 1) / q) that the outcomes would have without sampling.

    Three forms of it are exact in turn: near 0, near the end ln(1 - q) of the losses, and where
    exp(loss) is large.
    """
    if q == 1:
        return losses
    # All three forms are computed everywhere, and the exact one is selected. The others may
    # overflow.
    end = np.log1p(-q)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratios = np.expm1(losses) / q
        near_0 = np.log1p(ratios)
        near_end = np.log(np.expm1(losses - end)) + end - math.log(q)
        large = losses + np.log1p(-(1 - q) * np.exp(-losses)) - math.log(q)
    unsampled: NDArray[np.float64] = np.where(
        losses > 1, large, np.where(ratios > -0.5, near_0, near_end)
    )
    return unsampled
