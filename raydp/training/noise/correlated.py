"""The noise of a step before it is scaled: independent of that of the other steps, or leaning on the last few."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raydp.training.noise.stream import KeyedStream
from raydp.training.sharding import Part


class CorrelatedNoise:
    """The rows of C^{-1} Z, one after the other, for Z of independent standard normals and C lower-triangular, banded
    and Toeplitz: y_t = (z_t - Σ_j c_j y_(t-j)) / c_0.

    Only the last rows are kept, in memory and in double precision, 8 (b̂ - 1) bytes a coordinate where the noise is
    drawn. They are not saved: who reads a checkpoint must not learn the noise. A run that goes on from one draws the
    rows from the first on again, from the keyed stream, and so has the same ones bit for bit.

    Args:
        strategy: [b̂] the first column of C; (1,) is independent noise.

    Source: Choquette-Choo et al. 2023, section 4 (the recurrence for banded C).
    """

    def __init__(self, strategy: Sequence[float] = (1.0,)) -> None:
        self._diagonal, *self._below = (float(c) for c in strategy)
        assert self._below or self._diagonal == 1, "columns have norm 1"
        self._done: dict[str, int] = {}
        self._past: dict[str, deque[NDArray[np.float64]]] = {}

    def normal(self, stream: KeyedStream, part: Part, *, step: int, name: str) -> NDArray[np.float64]:
        """[length of part] the noise of a step on what is held of a parameter; steps are asked for in order."""
        if not self._below:
            return self._row(stream, part, step, name)
        done, past = self._done.get(name, 0), self._past.setdefault(name, deque(maxlen=len(self._below)))
        assert done <= step, "the steps before are gone"
        for row in range(done, step + 1):
            noise = self._row(stream, part, row, name) / self._diagonal
            for coefficient, before in zip(self._below, past, strict=False):  # the newest first
                noise -= coefficient / self._diagonal * before
            past.appendleft(noise)
        self._done[name] = step + 1
        return past[0]

    def _row(self, stream: KeyedStream, part: Part, step: int, name: str) -> NDArray[np.float64]:
        """z_t."""
        held = slice(part.start, part.stop)
        return stream.normal(part.count, step=step, purpose="noise", name=name, part=held)
