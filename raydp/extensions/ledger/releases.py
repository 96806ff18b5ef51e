"""What is released about one body of data, and what it costs together."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, TypedDict

from raydp.privacy import NonPrivateEvent, PoissonGaussian, composed
from raydp.privacy.accounting.documents import ComposedCost
from raydp.privacy.accounting.rdp import RDPAccountant
from raydp.system.cache import cache_dir

MAX_EPSILON, MIN_DELTA = 1000.0, 1e-100
LARGEST_FRACTION = 11.0
"""The largest order that is no integer; see `raydp.privacy.accounting.rdp.ORDERS`."""
LARGEST_ORDER = 1024.0
SHARE_OF_GAUSSIAN = 0.6
"""α - 1 over that of a Gaussian mechanism: 0.55 to 0.8 was best for 4 to 40 models of DP-SGD."""


Pair = tuple[float, float]
"""(ε, δ) of a release that is no sampled Gaussian mechanism, as a choice among runs."""
Cost = PoissonGaussian | NonPrivateEvent | Pair


class ReleasesDocument(TypedDict):
    """Releases as JSON. A row holds q, σ and T, or ε and δ, and the names of the models."""

    events: list[tuple[float, float, int, list[str]]]
    pairs: list[tuple[float, float, list[str]]]
    unbounded: list[str]


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Released models by what each of them costs.

    Attributes:
        models: a name that no other model of the data has -> its mechanism.
    """

    models: Mapping[str, Cost] = field(default_factory=dict)

    def __or__(self, other: Releases) -> Releases:
        """Return the models of both. One that both have counts once."""
        return Releases(models={**self.models, **other.models})

    @property
    def num_models(self) -> int:
        """Return the number of models."""
        return len(self.models)

    @property
    def events(self) -> Counter[PoissonGaussian]:
        """Return each mechanism with the number of its models."""
        return Counter(c for c in self.models.values() if isinstance(c, PoissonGaussian))

    @property
    def pairs(self) -> list[Pair]:
        """Return the pairs (ε, δ)."""
        return [cost for cost in self.models.values() if isinstance(cost, tuple)]

    @property
    def unbounded(self) -> int:
        """Return the number of models without a guarantee."""
        return sum(isinstance(cost, NonPrivateEvent) for cost in self.models.values())

    def to_json(self) -> ReleasesDocument:
        """Return the content for an entry."""
        names = defaultdict[Cost, list[str]](list)
        for name, cost in sorted(self.models.items()):
            names[cost].append(name)
        events = [
            (c.sample_rate, c.noise_multiplier, c.num_steps, own)
            for c, own in names.items()
            if isinstance(c, PoissonGaussian)
        ]
        return {
            "events": sorted(events),
            "pairs": sorted((*c, own) for c, own in names.items() if isinstance(c, tuple)),
            "unbounded": names.get(NonPrivateEvent(), []),
        }

    @classmethod
    def from_json(cls, document: ReleasesDocument) -> Self:
        """Read what `to_json` wrote."""
        models: dict[str, Cost] = dict.fromkeys(document["unbounded"], NonPrivateEvent())
        for q, sigma, steps, names in document["events"]:
            event = PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=steps)
            models |= dict.fromkeys(names, event)
        for epsilon, delta, names in document["pairs"]:
            models |= dict.fromkeys(names, (epsilon, delta))
        return cls(models=models)

    def joint(self, delta: float, accountant: str) -> ComposedCost:
        """Return the joint cost, if no b, T or σ was chosen after an earlier result was seen.

        A pair (ε, δ) adds its ε, and takes its δ from the others.

        Source: Dwork and Roth 2014 (Theorem B.1) for the pairs.
        """
        left = delta - sum(of_pair for _, of_pair in self.pairs)
        answer: ComposedCost = {"epsilon": math.inf, "delta": delta, "accountant": accountant}
        if self.unbounded or left < 0 or (self.events and left == 0):
            return answer
        own = sum(epsilon for epsilon, _ in self.pairs)
        if not self.events:
            return {**answer, "epsilon": own}
        cost = composed(
            list(self.events.elements()),
            left,
            accountant,
            cache_dir=cache_dir() / "guarantee",
        )
        found = cost["epsilon"]
        return {**cost, "delta": delta, "epsilon": None if found is None else found + own}

    def spent(self, budget: RenyiBudget) -> float:
        """Return the part of a budget's ε that is spent; inf if there is no bound."""
        if self.unbounded or 2 * sum(delta for _, delta in self.pairs) > budget.delta:
            return math.inf
        if not self.num_models:
            return 0.0
        steps = [
            PoissonGaussian(
                sample_rate=e.sample_rate,
                noise_multiplier=e.noise_multiplier,
                num_steps=e.num_steps * count,
            )
            for e, count in self.events.items()
        ]
        divergence = RDPAccountant().divergence(steps)(budget.order) if steps else 0.0
        # Bun and Steinke 2016, Proposition 3.3: a bounded privacy loss has this divergence.
        divergence += sum(min(e, budget.order * e**2 / 2) for e, _ in self.pairs)
        return max(0.0, divergence + budget.conversion)


@dataclass(frozen=True, kw_only=True)
class RenyiBudget:
    """A bound on all releases about one body of data: a Rényi filter.

    Guarantee:
        Releases whose `Releases.spent` is at most epsilon are (epsilon, delta)-differentially
        private together, if (epsilon, delta) was fixed before the first result. Each sweep may be
        chosen after the results of all others were seen, with its b, T and σ, and sweeps may run at
        the same time.

    Proof:
        The order α depends on (ε, δ) alone. Divergences of order α add up to at most ρ however the
        mechanisms were chosen (Feldman and Zrnic 2021, Theorem 3.1), also of concurrent ones (Haney
        et al. 2023). So all together has a divergence of at most ρ, which gives (ρ + conversion,
        δ/2) (Balle et al. 2020, Theorem 21). An (ε', δ')-private mechanism post-processes a
        randomised response that tells all with probability δ', on either data set, and otherwise
        has a privacy loss of at most ε' (Kairouz, Oh and Viswanath 2015). The other half of δ pays
        for these probabilities.

    Args:
        epsilon: the bound, up to 1000.
        delta: the bound, from 1e-100.

    Raises:
        ValueError: an argument is out of its range.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= MAX_EPSILON:
            raise ValueError(
                f"the budget's epsilon must be > 0 and <= {MAX_EPSILON:g}, got {self.epsilon:g}. "
                "Change it."
            )
        if not MIN_DELTA <= self.delta < 1:
            raise ValueError(
                f"the budget's delta must be >= {MIN_DELTA:g} and < 1, got {self.delta:g}. Change it."
            )

    @property
    def order(self) -> float:
        """Return α: nearer to 1 than where a Gaussian mechanism of (ε, δ) converts best.

        Sampled mechanisms diverge at orders above their best one.
        """
        root = math.sqrt(math.log(2 / self.delta))
        gaussian = root * (math.sqrt(root**2 + self.epsilon) + root) / self.epsilon
        order = 1 + SHARE_OF_GAUSSIAN * gaussian
        whole = order > LARGEST_FRACTION
        return min(float(round(order)) if whole else order, LARGEST_ORDER)

    @property
    def conversion(self) -> float:
        """Return what the conversion from order α to δ/2 adds to a divergence."""
        order = self.order
        return math.log1p(-1 / order) - math.log(self.delta / 2 * order) / (order - 1)
