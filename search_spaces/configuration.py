"""A configuration of private training: (b, T, η), further fields, and exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, NotRequired, TypedDict

from raydp.search_spaces.settings import NO_SETTINGS, Settings, settings_in_words

HYPERPARAMETERS = ["batch_size", "num_steps", "learning_rate"]
"""The hyperparameters that every sweep varies, in the order (b, T, η)."""


class Hyperparameters(TypedDict):
    """A configuration as a part of a JSON document. Rows of results add their figures.

    `settings` has the further fields that the configuration sets, and is left out if it sets none.
    """

    batch_size: int
    num_steps: int
    learning_rate: float
    settings: NotRequired[dict[str, object]]


def exact(value: float | str) -> Fraction:
    """Return the written decimal as a fraction.

    A float stands for its shortest decimal (its `str`): 3e-3 is 3/1000, not the nearest double.
    Every decimal of at most 15 significant digits survives conversion to a double and back (IEEE
    754). So products are compared as on paper: 8192·250·3e-3 equals 4096·500·3e-3, regardless of
    rounding.

    Args:
        value: a finite number, or its text ("5e-4").

    Raises:
        ValueError: the value is not a finite decimal number.
    """
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("nan")
    # For an exponent beyond the range of doubles, the fraction's integers would have as many digits
    # as the exponent.
    if not math.isfinite(float(number)) or (number != 0 and float(number) == 0):
        raise ValueError(
            f"value must be a finite decimal number, got {value!r}. Write it like 0.001 or 1e-3."
        )
    return Fraction(number)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The hyperparameters that a sweep varies at one fixed (ε, δ).

    Attributes:
        batch_size: b, expected number of examples in a batch.
        num_steps: T, optimizer steps.
        learning_rate: η.
        settings: the further fields of the spec that it sets.

    Example:
        configuration = Configuration(batch_size=256, num_steps=100, learning_rate=1e-3)
        configuration.compute  # 25600
        configuration.updates  # Fraction(128, 5)

    Raises:
        ValueError: a value that is not positive, or not a whole number where one is needed.
    """

    batch_size: int
    num_steps: int
    learning_rate: float
    settings: Settings = NO_SETTINGS

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_steps"):
            value = getattr(self, name)
            # A bool is an int to Python.
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"{name} must be a whole number >= 1, got {value!r}. Write it like 256."
                )
        rate = self.learning_rate
        if not isinstance(rate, float) or not math.isfinite(rate) or rate <= 0:
            raise ValueError(
                f"learning_rate must be a finite number > 0, got {rate!r}. Write it like 1.0e-3."
            )

    @classmethod
    def from_json(cls, row: Hyperparameters) -> Configuration:
        """Return the configuration of a row."""
        return cls(
            batch_size=row["batch_size"],
            num_steps=row["num_steps"],
            learning_rate=row["learning_rate"],
            settings=Settings(row.get("settings")),
        )

    def to_json(self) -> Hyperparameters:
        """Return the configuration as data for JSON."""
        row: Hyperparameters = {
            "batch_size": self.batch_size,
            "num_steps": self.num_steps,
            "learning_rate": self.learning_rate,
        }
        # Documents of sweeps without further fields have no such entry.
        if self.settings:
            row["settings"] = self.fields
        return row

    def to_row(self) -> dict[str, object]:
        """Return the configuration as a row of a table, with its settings as text."""
        return {**vars(self), "settings": self.settings.text}

    @property
    def fields(self) -> dict[str, object]:
        """Return the further fields that it sets: dotted path in the spec -> value."""
        return dict(self.settings)

    @property
    def key(self) -> tuple[int, int, float, Settings]:
        """Return (T, b, η, settings): the order of lists of configurations, and among ties."""
        return (self.num_steps, self.batch_size, self.learning_rate, self.settings)

    @property
    def compute(self) -> int:
        """Return C = b·T, the expected number of processed examples (Hu et al. 2025, §4.1)."""
        return self.batch_size * self.num_steps

    @property
    def updates(self) -> Fraction:
        """Return U = C·η, the cumulative learning signal (Hu et al. 2025, §4.1), exactly."""
        return self.compute * exact(self.learning_rate)

    def __str__(self) -> str:
        further = f", {settings_in_words(self.settings, equals='=')}" if self.settings else ""
        return f"(b={self.batch_size}, T={self.num_steps}, η={self.learning_rate:g}{further})"


def point_of(configuration: Configuration) -> list[object]:
    """Return a configuration as a point of a list: [b, T, η], then its further fields, if any."""
    c = configuration
    return [c.batch_size, c.num_steps, c.learning_rate, *([c.fields] if c.settings else [])]


def configuration_at(point: Sequence[Any]) -> Configuration:
    """Return the configuration of a point that `point_of` has written."""
    batch_size, num_steps, learning_rate, *fields = point
    return Configuration(
        batch_size=batch_size,
        num_steps=num_steps,
        learning_rate=learning_rate,
        settings=Settings(*fields),
    )
