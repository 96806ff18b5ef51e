"""The ε that a second accountant states for the noise that the first accountant has found."""

from __future__ import annotations

from collections.abc import Iterable

from raydp.privacy.accounting.base import AccountantError
from raydp.privacy.accounting.events import PoissonGaussian
from raydp.privacy.accounting.pld import PLDAccountant
from raydp.privacy.accounting.prv import PRVAccountant
from raydp.privacy.records.record import PrivacyRecord

MOST_EVENTS = 8
"""Number of events that are checked at most: prv takes some tenths of a second for each."""


def cross_check(records: Iterable[PrivacyRecord]) -> str | None:
    """Return a sentence on prv's ε of runs whose noise pld has found.

    The two libraries share no code, and their methods differ. prv's upper estimate lies above its central one by its
    error, so it is a little above pld's ε where both are right.

    Returns:
        The sentence; None if no run has a plain ε by pld, or prv refuses all that were tried.
    """
    by_pld: dict[tuple[PoissonGaussian, float], float] = {}
    for record in records:
        event, accounted = record.mechanism.event, record.accounted
        plain = record.private_selection is None and record.data_sets is None
        if plain and accounted.accountant == PLDAccountant.name and isinstance(event, PoissonGaussian):
            by_pld[event, accounted.delta] = accounted.epsilon
    ordered = sorted(by_pld, key=lambda found: found[0].noise_multiplier)
    every = max(1, -(-len(ordered) // MOST_EVENTS))
    by_prv = {}
    for event, delta in ordered[::every]:
        try:
            by_prv[event, delta] = PRVAccountant().epsilon(event, delta)
        except AccountantError:
            continue
    if not by_prv:
        return None
    worst = max(by_prv, key=lambda found: by_prv[found] - by_pld[found])
    return (
        f"Cross-check of {len(by_prv)} of {len(ordered)} noise levels: by prv, another library, ε is at most "
        f"{by_prv[worst]:.4g} where pld says {by_pld[worst]:.4g}; prv's estimate includes its own error of "
        f"{PRVAccountant.eps_error:g}."
    )
