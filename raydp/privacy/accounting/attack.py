"""Bounds on an attacker who tests whether a record was in the training data, from the guarantee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raydp.privacy.accounting.events import Event, NonPrivateEvent
from raydp.privacy.accounting.pld import PLDAccountant

FALSE_POSITIVE_RATES = (1e-3, 1e-2, 1e-1)
_GRID_POINTS = 2000
_SMALLEST_DELTA = 1e-10


@dataclass(frozen=True, kw_only=True)
class AttackBounds:
    """Upper bounds on membership inference against one record.

    The attacker may know all other records.

    Attributes:
        advantage: largest true minus false positive rate, over all thresholds; 1 without a
            guarantee.
        false_positive_rates: [k].
        true_positive_rates: [k] largest true positive rate at each false positive rate.
    """

    advantage: float
    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]


def attack_bounds(
    event: Event, false_positive_rates: Sequence[float] = FALSE_POSITIVE_RATES
) -> AttackBounds:
    """Return bounds from the whole profile δ(ε), which holds at every ε at once.

    A test of "without the record" against "with it", in either direction, has a false positive rate
    α. Its true positive rate is at most min over ε of min(e^ε α + δ(ε), 1 - e^-ε (1 - δ(ε) - α)).
    The advantage is at most δ(0).

    Args:
        event: what the run releases.
        false_positive_rates: each in (0, 1).

    Guarantee:
        δ(ε) is computed by Connect-the-Dots, with its rounding error added, and is an upper bound.
        Every grid of ε gives a valid bound; a finer grid gives a tighter one. For the Gaussian
        mechanism the minimum is its exact trade-off curve.
    Raises:
        ValueError: a rate is not in (0, 1).
        AccountantError: the accountant cannot handle the event; the message names the limit.

    Source: Kairouz, Oh and Viswanath 2015 (Theorem 2.1); Dong, Roth and Su 2022 (Propositions 2.5
    and 2.12).
    """
    rates = np.asarray(false_positive_rates, dtype=np.float64)
    if not ((rates > 0) & (rates < 1)).all():
        raise ValueError(
            f"false_positive_rates must be > 0 and < 1, got {list(false_positive_rates)}. 0.001 is "
            "usual."
        )
    # Nothing bounds the test on a run without noise.
    if isinstance(event, NonPrivateEvent):
        return AttackBounds(
            advantage=1.0,
            false_positive_rates=tuple(rates.tolist()),
            true_positive_rates=(1.0,) * len(rates),
        )
    # A grid of ε that is finer near 0, where the trade-off curve bends. It ends where δ(ε) is too
    # small to matter.
    accountant = PLDAccountant()
    last = accountant.epsilon(event, max(_SMALLEST_DELTA, accountant.smallest_delta(event)))
    epsilons = np.linspace(0.0, 1.0, _GRID_POINTS) ** 2 * last
    deltas = accountant.deltas(event, epsilons)
    # At each rate α, take the best of both bounds over the grid (Kairouz et al. 2015, Theorem 2.1).
    # The cap at ε = 700 avoids an overflow; e^-700 is 0 beside 1, so no bound changes.
    grow = np.exp(np.minimum(epsilons, 700.0))  # [g, 1] against [k]
    powers = np.minimum(
        grow[:, None] * rates + deltas[:, None], 1 - (1 - deltas[:, None] - rates) / grow[:, None]
    ).min(axis=0)
    # δ(0) is the total variation distance, and so the largest advantage of any test.
    return AttackBounds(
        advantage=float(deltas[0]),
        false_positive_rates=tuple(rates.tolist()),
        true_positive_rates=tuple(np.minimum(powers, 1.0).tolist()),
    )
