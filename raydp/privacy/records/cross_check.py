"""The ε that a second accountant states for the noise that the first accountant has found."""

from __future__ import annotations

from collections.abc import Iterable

from raydp.privacy.accounting.accountant import AccountantError
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.privacy.accounting.pld import PLDAccountant
from raydp.privacy.accounting.prv import PRVAccountant
from raydp.privacy.records.cautions import stated
from raydp.privacy.records.record import PrivacyRecord

MOST_EVENTS = 8
"""Number of events that are checked at most: prv takes some tenths of a second for each."""


def cross_check(records: Iterable[PrivacyRecord]) -> str | None:
    """Return a sentence on prv's ε of runs whose noise pld has found.

    The two libraries share no code, and their methods differ. prv's upper estimate lies above its
    central one by its error, so it is a little above pld's ε where both are right.

    Returns:
        The sentence; None if no run has a plain ε by pld, or prv refuses all that were tried.
    """
    # Collect the runs whose ε is pld's for a plain Poisson-sampled mechanism. prv knows no other.
    by_pld: dict[tuple[PoissonGaussian, float], float] = {}
    for record in records:
        event, accounted = record.mechanism.event, record.accounted
        plain = record.choice is None and record.part is None
        if (
            plain
            and accounted.accountant == PLDAccountant.name
            and isinstance(event, PoissonGaussian)
        ):
            by_pld[event, accounted.delta] = accounted.epsilon
    # Check few, spread over the range of σ: an error would show at one of its ends.
    ordered = sorted(by_pld, key=lambda found: found[0].noise_multiplier)
    every = max(1, -(-len(ordered) // MOST_EVENTS))
    by_prv = {}
    for event, delta in ordered[::every]:
        try:
            by_prv[event, delta] = PRVAccountant().epsilon(event, delta)
        except AccountantError:
            continue
    # State the worst disagreement.
    if not by_prv:
        return None
    worst = max(by_prv, key=lambda found: by_prv[found] - by_pld[found])
    return (
        f"Cross-check of {len(by_prv)} of {len(ordered)} noise levels: by prv, another library, ε "
        f"is at most {stated(by_prv[worst])} where pld says {stated(by_pld[worst])}; prv's estimate "
        f"includes its own error of {PRVAccountant.eps_error:g}."
    )
