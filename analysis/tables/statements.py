"""An ε that a method states of its runs without an accountant, and how an ε is rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Literal, get_args

Level = Literal["claimed"]
"""How far a stated ε holds. "claimed": a formula or a person says so, and nothing proves it."""
UNPROVEN = {f"{level}_epsilon": f"{level} ε, not certified" for level in get_args(Level)}
"""Column of the points table, and field of a record, for each level -> its header."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """An ε that no accountant has computed. The ε of the same run's record is infinite."""

    level: Level
    epsilon: float

    @property
    def column(self) -> str:
        """Return the column of the points table, and the field of a record, with this ε."""
        return f"{self.level}_epsilon"

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Statement | None:
        """Return the statement in a record or a row; None if there is none."""
        for level in get_args(Level):
            if isinstance(epsilon := document.get(f"{level}_epsilon"), int | float):
                return cls(level=level, epsilon=epsilon)
        return None


def rounded_up(bound: float, digits: int = 4) -> float:
    """Round a finite upper bound, such as ε, up to a few digits, so that none claims too much."""
    return float(Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(bound))))


def stated_columns(statement: Statement | None) -> dict[str, float | None]:
    """Return the column of each level -> the stated ε, or None."""
    empty: dict[str, float | None] = dict.fromkeys(UNPROVEN)
    return empty if statement is None else {**empty, statement.column: statement.epsilon}
