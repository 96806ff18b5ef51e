"""Common parts of results: the reason of an undefined figure, and p-values that are corrected for multiple tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict


class Reason(TypedDict):
    """A result, or a part of one, that may hold undefined figures. An undefined figure is None.

    Attributes:
        reason: why figures are undefined; missing if all are defined.
    """

    reason: NotRequired[str]


def because(*reasons: str | None) -> Reason:
    """Return the entry that gives the reasons, or no entry if there are none. None is not a reason."""
    given = [reason for reason in reasons if reason is not None]
    return {"reason": "; ".join(given)} if given else {}


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given (Holm 1979).

    Rejecting the hypotheses whose adjusted p is at most α rejects any true hypothesis with probability at most α, for
    any dependence between the tests.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted
