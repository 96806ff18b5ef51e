"""Unscaled noise of one step: independent, or correlated with the last few steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import torch

from raydp.training.noise.stream import CPU, KeyedStream, assembled
from raydp.training.sharding import Part

SMALL = 1 << 15
"""Number of coordinates up to which noise is drawn at once.

So much fits the cache, and pieces would cost more calls.
"""


class CorrelatedNoise:
    """The rows of C^{-1} Z, one after another: y_t = (z_t - Σ_j c_j y_(t-j)) / c_0.

    Z has independent standard normal entries. C is lower-triangular, banded and Toeplitz.

    Only the last rows are kept, in the host's memory and in double precision: 8 (b̂ - 1) bytes a
    coordinate on the rank that draws the noise. They are never saved, because a checkpoint must not
    reveal the noise. A resumed run draws all rows again from the keyed stream, and gets the same
    rows bit for bit.

    Args:
        strategy: [b̂] the first column of C; (1,) gives independent noise.

    Source: Choquette-Choo et al. 2023, section 4 (the recurrence for banded C).
    """

    def __init__(self, strategy: Sequence[float] = (1.0,)) -> None:
        self._diagonal, *self._below = (float(c) for c in strategy)
        assert self._below or self._diagonal == 1, "columns have norm 1"
        self._done: dict[str, int] = {}
        self._past: dict[str, deque[torch.Tensor]] = {}

    def normal(
        self, stream: KeyedStream, part: Part, *, step: int, name: str, device: torch.device = CPU
    ) -> torch.Tensor:
        """Return [length of part] a step's noise (fp64) on the held part of a parameter.

        The noise is on `device`.

        Steps must be asked for in order. Independent noise is drawn on the device. Correlated noise
        is made in the memory of the host, where the earlier rows are.
        """
        if not self._below:
            return self._row(stream, part, step, name, device)
        done, past = (
            self._done.get(name, 0),
            self._past.setdefault(name, deque(maxlen=len(self._below))),
        )
        assert done <= step, "earlier rows are not kept"
        # After a resume, all earlier rows are drawn again from the keyed stream.
        for row in range(done, step + 1):
            noise = self._row(stream, part, row, name, CPU) / self._diagonal
            for coefficient, before in zip(self._below, past, strict=False):  # newest first
                noise -= coefficient / self._diagonal * before
            past.appendleft(noise)
        self._done[name] = step + 1
        return past[0].to(device)

    def pieces(
        self, stream: KeyedStream, parts: Mapping[str, Part], *, step: int, device: torch.device
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Draw a step's noise on the held parts of several parameters, which lie one after another.

        Yields:
            Positions, and the noise there. Each position comes once, in no order. Independent noise
            on one large part comes in pieces that fit the cache, so that it is never whole in
            memory.
        """
        lengths = [part.stop - part.start for part in parts.values()]
        # One large part in pieces, several whole parameters in one draw, anything else part by
        # part.
        if len(parts) == 1 and lengths[0] > SMALL and not self._below:
            ((name, part),) = parts.items()
            yield from self._row_pieces(stream, part, step, name, device)
        elif len(parts) > 1 and not self._below and all(part.is_whole for part in parts.values()):
            counts = {name: part.count for name, part in parts.items()}
            yield slice(None), stream.normals_on(device, counts, step=step, purpose="noise")
        else:
            drawn = [
                self.normal(stream, part, step=step, name=name, device=device)
                for name, part in parts.items()
            ]
            yield slice(None), drawn[0] if len(drawn) == 1 else torch.cat(drawn)

    def _row(
        self, stream: KeyedStream, part: Part, step: int, name: str, device: torch.device
    ) -> torch.Tensor:
        """Return z_t."""
        return assembled(
            self._row_pieces(stream, part, step, name, device), part.stop - part.start, device
        )

    def _row_pieces(
        self, stream: KeyedStream, part: Part, step: int, name: str, device: torch.device
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Draw the independent noise of one step, z_t, in pieces that fit the cache."""
        held = slice(part.start, part.stop)
        return stream.normal_pieces(
            device, part.count, step=step, purpose="noise", name=name, part=held
        )
