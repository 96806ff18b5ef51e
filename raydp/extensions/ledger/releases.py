"""What is released about one body of data, and what it costs together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self, TypedDict

from raydp.privacy import Event, NonPrivateEvent, PoissonGaussian, composed
from raydp.privacy.accounting.documents import ComposedCost
from raydp.privacy.accounting.rdp import RDPAccountant
from raydp.system.cache import cache_dir

LARGEST_FRACTION = 11.0
"""The largest order that is no integer; see `raydp.privacy.accounting.rdp.ORDERS`."""
LARGEST_ORDER = 1024.0
SHARE_OF_GAUSSIAN = 0.6
"""α - 1 over that of a Gaussian mechanism: 0.55 to 0.8 was best for 4 to 40 models of DP-SGD."""


class ReleasesDocument(TypedDict):
    """Releases as JSON. A row of `events` is q, σ, T and the number of models."""

    events: list[tuple[float, float, int, int]]
    pairs: list[tuple[float, float]]
    unbounded: int


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Released models by what each of them costs.

    Attributes:
        events: the mechanism of each model -> number of models.
        pairs: (ε, δ) of each release that is no such mechanism, as a choice among runs.
        unbounded: number of models without a guarantee.
    """

    events: Mapping[PoissonGaussian, int] = field(default_factory=dict)
    pairs: tuple[tuple[float, float], ...] = ()
    unbounded: int = 0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Self:
        """Return the releases of models with these mechanisms."""
        listed = list(events)
        private = [event for event in listed if not isinstance(event, NonPrivateEvent)]
        return cls(events=Counter(private), unbounded=len(listed) - len(private))

    def __add__(self, other: Releases) -> Releases:
        return Releases(
            events=Counter(self.events) + Counter(other.events),
            pairs=self.pairs + other.pairs,
            unbounded=self.unbounded + other.unbounded,
        )

    @property
    def num_models(self) -> int:
        """Return the number of models."""
        return sum(self.events.values()) + len(self.pairs) + self.unbounded

    def to_json(self) -> ReleasesDocument:
        """Return the content for an entry."""
        rows = ((e.sample_rate, e.noise_multiplier, e.num_steps, n) for e, n in self.events.items())
        return {"events": sorted(rows), "pairs": list(self.pairs), "unbounded": self.unbounded}

    @classmethod
    def from_json(cls, document: ReleasesDocument) -> Self:
        """Read what `to_json` wrote."""
        return cls(
            events={
                PoissonGaussian(sample_rate=q, noise_multiplier=sigma, num_steps=steps): count
                for q, sigma, steps, count in document["events"]
            },
            pairs=tuple((epsilon, delta) for epsilon, delta in document["pairs"]),
            unbounded=document["unbounded"],
        )

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
            list(Counter(self.events).elements()),
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
        private together. Each sweep may be chosen after the results of all others were seen, with
        its b, T and σ, and sweeps may run at the same time.

    Proof:
        The order α depends on (ε, δ) alone. Divergences of order α add up to at most ρ however the
        mechanisms were chosen (Feldman and Zrnic 2021, Theorem 3.1), also of concurrent ones (Haney
        et al. 2023). So all together has a divergence of at most ρ, which gives (ρ + conversion,
        δ/2) (Balle et al. 2020, Theorem 21). A release that is (ε', δ')-private is a mechanism
        with a privacy loss of at most ε', except with probability δ' (Dwork, Rothblum and Vadhan
        2010). The other half of δ pays for these exceptions.

    Args:
        epsilon, delta: the bound.
    """

    epsilon: float
    delta: float

    @property
    def order(self) -> float:
        """Return α: nearer to 1 than where a Gaussian mechanism of (ε, δ) converts best.

        Sampled mechanisms diverge at orders above their best one.
        """
        root = math.sqrt(math.log(2 / self.delta))
        order = 1 + SHARE_OF_GAUSSIAN * root / (math.sqrt(root**2 + self.epsilon) - root)
        whole = order > LARGEST_FRACTION
        return min(float(round(order)) if whole else order, LARGEST_ORDER)

    @property
    def conversion(self) -> float:
        """Return what the conversion from order α to δ/2 adds to a divergence."""
        order = self.order
        return math.log1p(-1 / order) - math.log(self.delta / 2 * order) / (order - 1)
