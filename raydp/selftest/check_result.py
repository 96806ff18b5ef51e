"""The result of a check of the self-test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from raydp.methods.method import Method


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
    return Check(
        name=name,
        passed=low <= figure <= high,
        figure=figure,
        bound=(float(low), float(high)),
        detail=detail,
    )


class FurtherChecks(Protocol):
    """Checks beside those of the core, such as of methods whose noise is not in the steps.

    An entry point of the group `raydp.selftest` names an object with these. Implementers:
    `ReleaseChecks`, `VoteChecks`, `WhiteBoxChecks`, `DivisionChecks`, `ReferenceChecks` and
    `ChoiceChecks`, all in extensions.

    Attributes:
        title: what the progress line says.
    """

    title: str

    def measure(self, method: Method) -> bool:
        """Return whether `checks` measure a method's noise in place of the checks of its steps.

        By default they add to those checks and replace none. The answer counts only for a method
        and checks of this distribution. Else a package could switch off the checks of `dp_sgd`.
        """
        return False

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Run the checks on a method that is measured here, or on one of their own for None.

        Args:
            progress: may be called with the share that is done, if the checks take long.
        """
