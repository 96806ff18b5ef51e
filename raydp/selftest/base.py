"""What a check of the self-test says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """One figure that was measured, and where it must lie.

    Attributes:
        name: what was checked, and on what.
        passed: the figure lies within the bound.
        figure: what came out.
        bound: the lowest and the highest figure that pass.
        detail: what the figure is.
    """

    name: str
    passed: bool
    figure: float
    bound: tuple[float, float]
    detail: str


def check(name: str, figure: float, low: float, high: float, detail: str) -> Check:
    """The check of a figure; one that is not a number fails."""
    figure = float(figure)
    return Check(name=name, passed=low <= figure <= high, figure=figure, bound=(float(low), float(high)), detail=detail)
