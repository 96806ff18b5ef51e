"""Common parts of results: reasons of undefined figures, and p-values after Holm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NotRequired, TypedDict, TypeVar

T = TypeVar("T")


class Reason(TypedDict):
    """A result, or a part of one, that may hold undefined figures. An undefined figure is None.

    Attributes:
        reason: why figures are undefined; missing if all are defined.
    """

    reason: NotRequired[str]


class Warned(str):
    """A warning, with a short form for a page that has one line for it."""

    short: str

    def __new__(cls, text: str, *, short: str) -> Warned:
        made = super().__new__(cls, text)
        made.short = short
        return made


def given(**fields: T | None) -> dict[str, T]:
    """Return the fields that are not None, for an answer that leaves out what is unknown."""
    return {name: value for name, value in fields.items() if value is not None}


def because(*reasons: str | None) -> Reason:
    """Return the entry that gives the reasons other than None, or no entry without any."""
    given = [reason for reason in reasons if reason is not None]
    return {"reason": "; ".join(given)} if given else {}


def unknown_figures(result: type[object]) -> dict[str, None]:
    """Return None for each figure of a kind of result, in the order of its class."""
    return dict.fromkeys(name for name in result.__annotations__ if name != "reason")


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values, in the order given; None where nothing was tested.

    Rejecting the hypotheses whose adjusted p is at most α rejects any true hypothesis with
    probability at most α, for any dependence between the tests (Holm 1979).
    """
    adjusted: list[float | None] = [None] * len(p_values)
    largest, tested = 0.0, sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    for rank, (p, i) in enumerate(tested):
        # The running maximum keeps adjusted values in the order of the p-values.
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[i] = largest
    return adjusted
