"""Infinite numbers in strict JSON."""

from __future__ import annotations

import math


def json_number(value: float) -> float | str:
    """Return the number, or the string "inf"."""
    return "inf" if math.isinf(value) else value


def from_json_number(value: float | str) -> float:
    """Return the number that `json_number` wrote."""
    return float(value) if isinstance(value, str) else value
