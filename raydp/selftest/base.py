"""The result of a check of the self-test."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """One measured figure and its allowed range.

    Attributes:
        name: what was checked, and on which subject.
        passed: whether the figure lies within the bound.
        figure: the measured value.
        bound: the lowest and the highest figure that pass.
        detail: description of the figure.
    """

    name: str
    passed: bool
    figure: float
    bound: tuple[float, float]
    detail: str


def check(name: str, figure: float, low: float, high: float, detail: str) -> Check:
    """Return the check of a figure. A figure that is not a number fails."""
    figure = float(figure)
    return Check(name=name, passed=low <= figure <= high, figure=figure, bound=(float(low), float(high)), detail=detail)
