"""The privacy cost of choosing: the guarantee of the best of a random number of runs (Papernot and Steinke 2022)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from raydp.privacy.accounting.base import AccountantError
from raydp.privacy.accounting.events import PoissonGaussian, check_delta
from raydp.privacy.accounting.rdp import ORDERS, RDPAccountant

Curve = Callable[[float], float]
"""Bound on the Rényi divergence of one run, as a function of the order λ > 1."""

MIN_ETA = 1e-100
"""Smallest η ≠ 0. Closer to 0, the formulas for η ≠ 0 leave double precision."""


class NumRuns(ABC):
    """Distribution of the number K of runs. It is fixed before the sweep and independent of the data."""

    mean: float

    @abstractmethod
    def cost(self, order: float, curve: Curve) -> float:
        """Return the Rényi divergence of the best run minus that of one run, at an order."""

    @abstractmethod
    def probability(self, k: int) -> float:
        """Return P[K = k]."""

    def quantile(self, u: float) -> int:
        """Return the smallest k with P[K <= k] > u, for u in [0, 1). It draws K from a uniform number."""
        total, k = self.probability(0), 0
        while total <= u:
            k += 1
            more = self.probability(k)
            total += more
            if k > self.mean and more < 1e-17:  # the remaining probability is below double precision
                break
        return k


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial(NumRuns):
    """K >= 1 with P[K = k] = (1-γ)^k / (γ^-η - 1) Π_{l<k} (l+η)/(l+1); η = 1 is geometric, η = 0 logarithmic.

    Args:
        eta: η > -1; a smaller η costs less and spreads K more.
        gamma: γ in (0, 1); a smaller γ means more runs.

    Source: Papernot and Steinke 2022 (Definition 1, Theorem 2).
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1 and math.isfinite(self.eta)):
            raise ValueError(f"eta must be > -1, got {self.eta}. 1 is the geometric distribution, 0 the logarithmic.")
        if 0 < abs(self.eta) < MIN_ETA:
            raise ValueError(f"eta must be 0 or at least {MIN_ETA:g} from it, got {self.eta}. Use 0.")
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma must be > 0 and < 1, got {self.gamma}. It sets the expected number of runs.")

    @classmethod
    def with_mean(cls, mean: float, *, eta: float) -> TruncatedNegativeBinomial:
        """Return the distribution with E[K] = mean > 1."""
        from scipy.optimize import brentq

        if not (mean > 1 and math.isfinite(mean)):
            raise ValueError(f"expected_runs must be > 1, got {mean}. With one run there is nothing to choose.")

        def excess(log_gamma: float) -> float:
            return math.log(cls(eta=eta, gamma=math.exp(log_gamma)).mean / mean)

        ends = math.log(1e-12), math.log1p(-1e-9)
        if not excess(ends[1]) < 0 < excess(ends[0]):
            raise ValueError(
                f"expected_runs must be a mean that a gamma from 1e-12 to 1 - 1e-9 gives, got {mean!r} with eta "
                f"{eta:g}. Take one further from 1, or a smaller one."
            )
        return cls(eta=eta, gamma=math.exp(brentq(excess, *ends, xtol=1e-14)))

    @property
    def mean(self) -> float:  # type: ignore[override]
        """Return E[K]."""
        if self.eta == 0:
            return (1 / self.gamma - 1) / -math.log(self.gamma)
        return self.eta * (1 - self.gamma) / (self.gamma * -math.expm1(self.eta * math.log(self.gamma)))

    def probability(self, k: int) -> float:
        if k < 1:
            return 0.0
        log = k * math.log1p(-self.gamma)
        if self.eta == 0:
            return math.exp(log - math.log(k * -math.log(self.gamma)))
        # Π_{l<k} (l+η)/(l+1) = Γ(k+η) / (Γ(η) k!). For η < 0, Γ(η) and γ^-η - 1 are both negative.
        log += math.lgamma(k + self.eta) - math.lgamma(self.eta) - math.lgamma(k + 1)
        return math.exp(log - math.log(abs(math.expm1(-self.eta * math.log(self.gamma)))))

    def cost(self, order: float, curve: Curve) -> float:
        second = smallest(lambda o: (1 - 1 / o) * curve(o) - math.log(self.gamma) / o)
        return (1 + self.eta) * second + math.log(self.mean) / (order - 1)


@dataclass(frozen=True, kw_only=True)
class PoissonRuns(NumRuns):
    """K ~ Poisson(mean); with K = 0 nothing is released.

    Source: Papernot and Steinke 2022 (Theorem 6).
    """

    mean: float

    def __post_init__(self) -> None:
        if not (self.mean >= 1 and math.isfinite(self.mean)):
            raise ValueError(f"expected_runs must be >= 1, got {self.mean}. With fewer there is nothing to choose.")

    def probability(self, k: int) -> float:
        return math.exp(-self.mean + k * math.log(self.mean) - math.lgamma(k + 1))

    def cost(self, order: float, curve: Curve) -> float:
        epsilon = math.log1p(1 / (order - 1))  # the largest ε̂ that the theorem allows
        return self.mean * _delta(curve, epsilon) + math.log(self.mean) / (order - 1)


def tuned_epsilon(events: Sequence[PoissonGaussian], num_runs: NumRuns, delta: float) -> float:
    """Return an upper bound on ε of releasing only the best of K runs, each of a configuration drawn from `events`.

    Args:
        events: what each configuration's run would release; configurations are drawn uniformly.
        num_runs: the distribution of K.
        delta: in (0, 1).

    Guarantee:
        The bound holds under three conditions. K and the configurations are drawn independently of the data. "Best" is
        the argmax, under a fixed order, of a function of the outputs alone: a utility measured on public data is such a
        function, a score measured on the private data is not. Nothing about the other runs is released. A draw among
        configurations has at most the largest of their divergences at each order (quasi-convexity).

    Raises:
        ValueError: no events, or delta out of (0, 1).
        AccountantError: no order gives a finite bound.

    Source: Papernot and Steinke 2022 (Theorems 2 and 6); Balle et al. 2020 (Theorem 21) for the conversion.
    """
    return tuned_epsilons(events, num_runs, [delta])[0]


def tuned_epsilons(events: Sequence[PoissonGaussian], num_runs: NumRuns, deltas: Sequence[float]) -> list[float]:
    """Return `tuned_epsilon` at each δ. Divergences are computed once."""
    if not events:
        raise ValueError("events must hold at least one configuration, got none. Pass what a run may release.")
    for delta in deltas:
        check_delta(delta)
    curve = worst_curve(events)

    @cache
    def divergence(order: float) -> float:
        return curve(order) + num_runs.cost(order, curve)

    def bound(delta: float) -> float:
        return smallest(lambda o: divergence(o) - math.log(delta * o) / (o - 1) + math.log1p(-1 / o))

    bounds = [bound(delta) for delta in deltas]
    if math.inf in bounds:
        raise AccountantError("private_selection has no finite bound for these runs. Use a larger noise_multiplier.")
    return [max(0.0, value) for value in bounds]


def worst_curve(events: Sequence[PoissonGaussian]) -> Curve:
    """Return the largest composed Rényi divergence of the events, order by order."""
    curves = [RDPAccountant().divergence([event]) for event in dict.fromkeys(events)]
    return cache(lambda order: max(c(order) for c in curves))


def smallest(bound: Callable[[float], float]) -> float:
    """Return the smallest value of a bound over the orders.

    The bound holds at every order, so unvisited orders can only cost tightness. A coarse grid finds the valley, and a
    ternary search its bottom.
    """
    values = cache(lambda index: bound(ORDERS[index]))
    best = min(range(len(_COARSE)), key=lambda k: values(_COARSE[k]))
    low, high = _COARSE[max(best - 1, 0)], _COARSE[min(best + 1, len(_COARSE) - 1)]
    while high - low > 4:
        third = (high - low) // 3
        if values(low + third) <= values(high - third):
            high -= third
        else:
            low += third
    return min(values(_COARSE[best]), *(values(index) for index in range(low, high + 1)))


def _coarse() -> tuple[int, ...]:
    """Return positions in ORDERS about a factor of 1.37 apart, in order - 1 below 12 and in order above."""
    fractional = sum(order < 12 for order in ORDERS)
    whole = {round(12 * 1.37**k) for k in range(15)}
    above = [i for i, order in enumerate(ORDERS) if order >= 12 and (order in whole or order == ORDERS[-1])]
    return (*range(0, fractional, 16), *above)


_COARSE = _coarse()


def _delta(curve: Curve, epsilon: float) -> float:
    """Return the smallest δ at ε over the orders (the conversion of `tuned_epsilon`, solved for δ)."""
    log = smallest(lambda o: (o - 1) * (curve(o) - epsilon + math.log1p(-1 / o)) - math.log(o))
    return min(1.0, math.exp(min(0.0, log)))
