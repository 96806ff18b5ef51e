"""The privacy cost of choosing: ε of the best of a random number of runs, by two bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from raydp.extensions.private_selection.num_runs import NumRuns, TruncatedNegativeBinomial
from raydp.extensions.private_selection.renyi_orders import Curve, smallest
from raydp.extensions.private_selection.selection_profile import profile_epsilons
from raydp.privacy.accounting.accountant import AccountantError
from raydp.privacy.accounting.events import PoissonGaussian, check_delta
from raydp.privacy.accounting.rdp import RDPAccountant

BOUNDS: dict[str, str] = {
    "pld": "privacy profiles (raydp.extensions.private_selection.selection_profile; Koskela, Redberg and Wang 2024)",
    "rdp": "Rényi divergences (Papernot and Steinke 2022)",
}
"""Accountants that can bound a private selection, with the bound in words."""


def tuned_epsilon(
    events: Sequence[PoissonGaussian], num_runs: NumRuns, delta: float, accountant: str = "rdp"
) -> float:
    """Return an upper bound on ε of releasing only the best of K runs, drawn from `events`.

    Args:
        events: what each configuration's run would release; configurations are drawn uniformly.
        num_runs: the distribution of K.
        delta: in (0, 1).
        accountant: "pld" for the bound by privacy profiles, "rdp" for the bound by Rényi
            divergences.

    Guarantee:
        The bound holds under three conditions. K and the configurations are drawn independently of
        the data. "Best" is the argmax, under a fixed order, of a function of the outputs alone: a
        utility measured on public data is such a function, a score measured on the private data is
        not. Nothing about the other runs is released.

    Raises:
        ValueError: no events, delta out of (0, 1), or no bound by this accountant is known.
        AccountantError: the accountant gives no finite bound.

    Source: the theorem of `selection_profile` (pld); Papernot and Steinke 2022, Theorems 2 and 6
    (rdp).
    """
    return tuned_epsilons(events, num_runs, [delta], accountant)[0]


def best_of(
    event: PoissonGaussian, expected_runs: float, deltas: Sequence[float], accountant: str
) -> dict[str, object]:
    """Return ε, at each δ, of releasing only the best of a random number of equal runs.

    The service `best_of` of `raydp profile --expected-runs`.

    Args:
        event: what one run would release.
        expected_runs: mean of the number of runs, which is geometric.
        deltas: the values of δ.
        accountant: ε is computed by rdp if it is rdp, and by pld otherwise: no other accountant has
            a bound. The answer names the one that was used.
    """
    runs = TruncatedNegativeBinomial.with_mean(expected_runs, eta=1.0)
    bound_by = "rdp" if accountant == "rdp" else "pld"
    return {
        "expected_runs": expected_runs,
        "distribution": "geometric",
        "accountant": bound_by,
        "epsilons": [tuned_epsilon([event], runs, delta, bound_by) for delta in deltas],
    }


def tuned_epsilons(
    events: Sequence[PoissonGaussian],
    num_runs: NumRuns,
    deltas: Sequence[float],
    accountant: str = "rdp",
) -> list[float]:
    """Return `tuned_epsilon` at each δ. Runs are composed once."""
    if not events:
        raise ValueError(
            "events must hold at least one configuration, got none. Pass what a run may release."
        )
    for delta in deltas:
        check_delta(delta)
    bounds = bounds_at(events, num_runs, deltas, accountant)
    if math.inf in bounds:
        raise AccountantError(
            "private_selection has no finite bound for these runs. Use a larger noise_multiplier."
        )
    return bounds


def bounds_at(
    events: Sequence[PoissonGaussian], num_runs: NumRuns, deltas: Sequence[float], accountant: str
) -> list[float]:
    """Return `tuned_epsilons`, with inf where there is no finite bound."""
    check_bound(accountant)
    if accountant == "pld":
        return profile_epsilons(events, num_runs, deltas)
    return renyi_epsilons(events, num_runs, deltas)


def check_bound(accountant: str, *, field: str = "accountant") -> None:
    """Raise ValueError if no bound for a private selection is known by this accountant."""
    if accountant not in BOUNDS:
        raise ValueError(
            f"{field} must be {' or '.join(BOUNDS)} with tuning private_selection, got "
            f"{accountant!r}. The cost of the choice is known by these accountants alone: set it "
            "to pld, the tighter one."
        )


def renyi_epsilons(
    events: Sequence[PoissonGaussian], num_runs: NumRuns, deltas: Sequence[float]
) -> list[float]:
    """Return an upper bound on ε at each δ of the best of K runs, by Rényi divergences.

    A draw among configurations has at most the largest of their divergences at each order
    (quasi-convexity). ε is inf where no order gives a finite bound.

    Source: Papernot and Steinke 2022 (Theorems 2 and 6); Balle et al. 2020 (Theorem 21) for the
    conversion.
    """
    curve = worst_curve(events)

    @cache
    def divergence(order: float) -> float:
        return curve(order) + num_runs.cost(order, curve)

    def bound(delta: float) -> float:
        return smallest(
            # Balle et al. 2020, Theorem 21, at order o.
            lambda o: divergence(o) - math.log(delta * o) / (o - 1) + math.log1p(-1 / o)
        )

    return [max(0.0, bound(delta)) for delta in deltas]


def worst_curve(events: Sequence[PoissonGaussian]) -> Curve:
    """Return the largest composed Rényi divergence of the events, order by order."""
    curves = [RDPAccountant().divergence([event]) for event in dict.fromkeys(events)]
    return cache(lambda order: max(c(order) for c in curves))
