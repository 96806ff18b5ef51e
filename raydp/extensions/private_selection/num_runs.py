"""Distributions of the number of runs among which a private selection chooses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydp.extensions.private_selection.renyi_orders import Curve, smallest, smallest_delta
from raydp.privacy.accounting.accountant import AccountantError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIN_ETA = 1e-100
"""Smallest η ≠ 0. Closer to 0, the formulas for η ≠ 0 leave double precision."""


class NumRuns(ABC):
    """Distribution of the number K of runs.

    It is fixed before the sweep and independent of the data. Implemented by
    `TruncatedNegativeBinomial`, `PoissonRuns` and `BinomialRuns`.
    """

    mean: float

    @abstractmethod
    def cost(self, order: float, curve: Curve) -> float:
        """Return the Rényi divergence of the best run minus that of one run, at an order."""

    @abstractmethod
    def probability(self, k: int) -> float:
        """Return P[K = k]."""

    @abstractmethod
    def log_slope(self, above: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ln f'(1 - above) at [m] probabilities, where f(x) = E[x^K]."""

    @abstractmethod
    def above(self, log_slope: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the [m] probabilities at which `log_slope` has the given values."""

    def quantile(self, u: float) -> int:
        """Return the smallest k with P[K <= k] > u, for u in [0, 1).

        It draws K from a uniform number.
        """
        # Inverse transform sampling.
        total, k = self.probability(0), 0
        while total <= u:
            k += 1
            more = self.probability(k)
            total += more
            # The remaining probability is below double precision.
            if k > self.mean and more < 1e-17:
                break
        return k


@dataclass(frozen=True, kw_only=True)
class TruncatedNegativeBinomial(NumRuns):
    """K >= 1 with P[K = k] = (1-γ)^k / (γ^-η - 1) Π_{l<k} (l+η)/(l+1).

    η = 1 is the geometric distribution and η = 0 the logarithmic one.

    Args:
        eta: η > -1; a smaller η costs less and spreads K more.
        gamma: γ in (0, 1); a smaller γ means more runs.

    Source: Papernot and Steinke 2022 (Definition 1, Theorem 2).
    """

    eta: float
    gamma: float

    def __post_init__(self) -> None:
        if not (self.eta > -1 and math.isfinite(self.eta)):
            raise ValueError(
                f"eta must be > -1, got {self.eta}. 1 is the geometric distribution, 0 the "
                "logarithmic."
            )
        if 0 < abs(self.eta) < MIN_ETA:
            raise ValueError(
                f"eta must be 0 or at least {MIN_ETA:g} from it, got {self.eta}. Use 0."
            )
        if not 0 < self.gamma < 1:
            raise ValueError(
                f"gamma must be > 0 and < 1, got {self.gamma}. It sets the expected number of runs."
            )

    @classmethod
    def with_mean(cls, mean: float, *, eta: float) -> TruncatedNegativeBinomial:
        """Return the distribution with E[K] = mean > 1."""
        from scipy.optimize import brentq

        if not (mean > 1 and math.isfinite(mean)):
            raise ValueError(
                f"expected_runs must be > 1, got {mean}. With one run there is nothing to choose."
            )

        # E[K] falls in γ over many orders of magnitude, so the root is found in ln γ.
        def excess(log_gamma: float) -> float:
            return math.log(cls(eta=eta, gamma=math.exp(log_gamma)).mean / mean)

        ends = math.log(1e-12), math.log1p(-1e-9)
        if not excess(ends[1]) < 0 < excess(ends[0]):
            raise ValueError(
                "expected_runs must be a mean that a gamma from 1e-12 to 1 - 1e-9 gives, got "
                f"{mean!r} with eta {eta:g}. Take one further from 1, or a smaller one."
            )
        return cls(eta=eta, gamma=math.exp(brentq(excess, *ends, xtol=1e-14)))

    @property
    def mean(self) -> float:  # type: ignore[override]
        """Return E[K]."""
        # The limit η -> 0 of the formula below, which is 0/0 there.
        if self.eta == 0:
            return (1 / self.gamma - 1) / -math.log(self.gamma)
        return (
            self.eta
            * (1 - self.gamma)
            / (self.gamma * -math.expm1(self.eta * math.log(self.gamma)))
        )

    def probability(self, k: int) -> float:
        if k < 1:
            return 0.0
        log = k * math.log1p(-self.gamma)
        if self.eta == 0:
            return math.exp(log - math.log(k * -math.log(self.gamma)))
        # Π_{l<k} (l+η)/(l+1) = Γ(k+η) / (Γ(η) k!). For η < 0, Γ(η) and γ^-η - 1 are both negative.
        log += math.lgamma(k + self.eta) - math.lgamma(self.eta) - math.lgamma(k + 1)
        return math.exp(log - math.log(abs(math.expm1(-self.eta * math.log(self.gamma)))))

    def log_slope(self, above: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        ratio: NDArray[np.float64] = np.log1p((1 / self.gamma - 1) * above)
        return math.log(self.mean) - (self.eta + 1) * ratio

    def above(self, log_slope: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        ratio: NDArray[np.float64] = np.expm1((math.log(self.mean) - log_slope) / (self.eta + 1))
        return ratio / (1 / self.gamma - 1)

    def cost(self, order: float, curve: Curve) -> float:
        # Papernot and Steinke 2022, Theorem 2: the second order of the bound is free, so take the
        # best.
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
            raise ValueError(
                f"expected_runs must be >= 1, got {self.mean}. With fewer there is nothing to "
                "choose."
            )

    def probability(self, k: int) -> float:
        return math.exp(-self.mean + k * math.log(self.mean) - math.lgamma(k + 1))

    def log_slope(self, above: NDArray[np.float64]) -> NDArray[np.float64]:
        return math.log(self.mean) - self.mean * above

    def above(self, log_slope: NDArray[np.float64]) -> NDArray[np.float64]:
        return (math.log(self.mean) - log_slope) / self.mean

    def cost(self, order: float, curve: Curve) -> float:
        epsilon = math.log1p(1 / (order - 1))  # the largest ε̂ that the theorem allows
        return self.mean * smallest_delta(curve, epsilon) + math.log(self.mean) / (order - 1)


@dataclass(frozen=True, kw_only=True)
class BinomialRuns(NumRuns):
    """K ~ Binomial(trials, mean / trials); with K = 0 nothing is released.

    K spreads less than a Poisson number.

    Source: Koskela, Redberg and Wang 2024. Rényi divergences have no theorem for this distribution.
    """

    mean: float
    trials: int

    def __post_init__(self) -> None:
        if not self.mean >= 1:
            raise ValueError(
                f"expected_runs must be >= 1, got {self.mean}. With fewer there is nothing to "
                "choose."
            )
        if not (self.trials > self.mean and self.trials == int(self.trials)):
            raise ValueError(
                f"trials must be an integer > expected_runs {self.mean:g}, got {self.trials}. It "
                "is the largest K; a fixed K has no finite ε."
            )

    def probability(self, k: int) -> float:
        if k > self.trials:
            return 0.0
        share = self.mean / self.trials
        # ln of the binomial probability; the coefficient itself would overflow.
        ways = math.lgamma(self.trials + 1) - math.lgamma(k + 1) - math.lgamma(self.trials - k + 1)
        return math.exp(ways + k * math.log(share) + (self.trials - k) * math.log1p(-share))

    def log_slope(self, above: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        missed: NDArray[np.float64] = np.log1p(-self.mean / self.trials * above)
        return math.log(self.mean) + (self.trials - 1) * missed

    def above(self, log_slope: NDArray[np.float64]) -> NDArray[np.float64]:
        import numpy as np

        missed: NDArray[np.float64] = np.expm1(
            (log_slope - math.log(self.mean)) / (self.trials - 1)
        )
        return missed / (-self.mean / self.trials)

    def cost(self, order: float, curve: Curve) -> float:
        raise AccountantError(
            "accountant must be pld for a binomial number of runs, got rdp. Or take another "
            "distribution."
        )
