"""Scales on which a figure is modelled: its own, its logarithm, and the log-odds of a rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_LOG = 200.0


def bounded_exp(logarithms: Array, most: float = _MOST_LOG) -> Array:
    """Return the exponential of logarithms limited to [-most, most]. The default can be squared."""
    exponential: Array = np.exp(np.clip(logarithms, -most, most))
    return exponential


@dataclass(frozen=True)
class Scale:
    """A scale, by its function of the figure.

    Attributes:
        to, back: the function and its inverse.
        slope: derivative of `to` at a figure, by which an error counts on the scale (delta method).
        curved: whether the function is not the identity.
    """

    to: Callable[[Array], Array]
    back: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    curved: bool = True


def log_odds(highest: float) -> Scale:
    """Return the scale of the log-odds of figures between 0 and a highest value, plus ln `highest`.

    Far below the highest value it is the logarithm.
    """
    return Scale(
        lambda x: np.log(x) - np.log1p(-x / highest),
        lambda z: bounded_exp(z) / (1 + bounded_exp(z) / highest),
        lambda x: 1 / x + 1 / (highest - x),
    )


OWN = Scale(np.positive, np.positive, np.ones_like, curved=False)
LOGARITHM = log_odds(math.inf)
