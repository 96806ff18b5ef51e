"""Evenly spaced subsets."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly(count: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` evenly spaced positions out of `count`, ascending, with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))
