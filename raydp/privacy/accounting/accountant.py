"""The interface of accountants. An accountant bounds ε from above, for an event at a δ."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from typing import ClassVar

from raydp.privacy.accounting.events import (
    Event,
    NonPrivateEvent,
    PoissonGaussian,
    PrivacyTarget,
    check_delta,
)


class AccountantError(ValueError):
    """The accountant's library cannot handle an event or a δ soundly; the message says why."""


class Accountant(ABC):
    """Bounds ε from above for events. Subclasses are built without arguments.

    Implementers: `PLDAccountant`, `PRVAccountant` and `RDPAccountant`. A plug-in sets `name` and
    `distribution`, and writes `_bounds`:

        class MyAccountant(Accountant):
            name, distribution = "mine", "my-package"
            def _bounds(self, events, deltas): return [my_epsilon(events, d) for d in deltas]

    Attributes:
        name: registry name.
        distribution: the package that computes; its version goes into records and cache keys.
        largest_excess: how far above the exact ε (relative) the self-test lets a bound be. A larger
            excess would hide omissions.

    Formal guarantees:
        The bounds hold under add-or-remove-one adjacency, for independent Poisson samples and noise
        at every step, and for adaptively chosen gradients. Parameters (sample rate, noise, number
        of steps) must not depend on what earlier steps released. All computation is in floating
        point; each subclass states its allowance for rounding.
    """

    name: ClassVar[str]
    distribution: ClassVar[str]
    largest_excess: ClassVar[float] = 0.3

    @property
    def version(self) -> str:
        """Return the library behind the numbers and its version, as in "prv-accountant 0.2.0"."""
        return f"{self.distribution} {version(self.distribution)}"

    @property
    def settings(self) -> dict[str, str]:
        """Return the accountant's own parameters, such as a grid's spacing, for a cache's key."""
        return {
            name: repr(value)
            for name, value in sorted(vars(self).items())
            if not name.startswith("_")
        }

    def epsilon(self, event: Event, delta: float) -> float:
        """Return an upper bound on ε at δ; inf for NonPrivateEvent.

        Raises:
            ValueError: delta is not in (0, 1).
            AccountantError: the library cannot handle the event; the message names the limit.
        """
        return self.composed_epsilons([event], [delta])[0]

    def epsilons(self, event: Event, deltas: Sequence[float]) -> list[float]:
        """Return upper bounds on ε at each δ, from one composition if the library allows it."""
        return self.composed_epsilons([event], deltas)

    def composed_epsilons(self, events: Sequence[Event], deltas: Sequence[float]) -> list[float]:
        """Return upper bounds on ε, at each δ, of all the events together on the same records.

        Raises:
            ValueError: there are no events, or a delta is not in (0, 1).
            AccountantError: the library cannot handle the events; the message names the limit.
        """
        if not events:
            raise ValueError(
                "events must hold at least one event, got none. Pass the events of what is "
                "released."
            )
        for delta in deltas:
            check_delta(delta)
        # One release without noise makes the joint ε infinite, whatever the others are.
        private = [event for event in events if not isinstance(event, NonPrivateEvent)]
        if len(private) < len(events):
            return [math.inf] * len(deltas)
        return self._bounds(merged(private), deltas)

    def tight_target(self, target: PrivacyTarget) -> PrivacyTarget:
        """Return the target at which an exact accountant needs about as much noise as this one.

        The prediction only chooses where calibration starts to search; no bound rests on it.
        """
        return target

    @abstractmethod
    def _bounds(self, events: Sequence[PoissonGaussian], deltas: Sequence[float]) -> list[float]:
        """Return upper bounds on ε at each δ for the composition of distinct events.

        Args:
            events: private events, as few as possible (see `merged`).
            deltas: each in (0, 1).

        Raises:
            AccountantError: the library cannot handle the events; the message names the limit.
        """


def merged(events: Sequence[PoissonGaussian]) -> list[PoissonGaussian]:
    """Return the same composition with as few events as possible.

    Equal events add their steps. Full-batch Gaussians become one event, which equals their
    composition exactly, with 1/σ² = Σ T_i/σ_i² (Dong, Roth and Su 2022, Corollary 3).
    """
    steps: dict[tuple[float, float], int] = {}
    precision = 0.0
    for event in events:
        # Full-batch Gaussians compose exactly: their precisions T/σ² add up.
        if event.sample_rate == 1:
            precision += event.num_steps / event.noise_multiplier**2
        else:
            key = (event.sample_rate, event.noise_multiplier)
            steps[key] = steps.get(key, 0) + event.num_steps
    # A fixed order, so that a cache's key does not depend on the order of the runs.
    result = [
        PoissonGaussian(sample_rate=q, noise_multiplier=s, num_steps=t)
        for (q, s), t in sorted(steps.items())
    ]
    if precision:
        result.append(
            PoissonGaussian(sample_rate=1.0, noise_multiplier=precision**-0.5, num_steps=1)
        )
    return result


def describe(events: Sequence[PoissonGaussian]) -> str:
    """Return the events in words, for a message."""
    return "; ".join(
        f"q={e.sample_rate:.4g} σ={e.noise_multiplier:.4g} T={e.num_steps}" for e in events
    )
