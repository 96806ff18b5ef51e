"""Some of many, evenly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly(count: int, most: int) -> NDArray[np.intp]:
    """Positions of at most so many of so many, ascending and evenly apart, both ends among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.intp))
