"""Adds a step's noise to the sums of clipped gradients, on a lattice."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raydp.training.noise.correlated import CorrelatedNoise
from raydp.training.noise.lattice import NOISE_WIDENING, add_lattice_noise, lattice_step
from raydp.training.noise.stream import KeyedStream
from raydp.training.sharding import Part
from raydp.training.vector import GradientVector

MANY_AT_ONCE = {"cuda"}
"""Types of devices that draw the noise of several small parameters at once."""
DRAWN_TOGETHER = 1 << 23
"""Number of coordinates of small parameters whose noise a GPU draws at once, 50 bytes each."""


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """Adds a run's noise to this rank's slices, so that every coordinate gets it once.

    Attributes:
        vector: the sums.
        stream: the run's keyed stream.
        source: correlation of a step's noise with the noise of earlier steps.
    """

    vector: GradientVector
    stream: KeyedStream
    source: CorrelatedNoise

    def add(self, step: int, noise_multiplier: float, threshold: float) -> None:
        """Add noise of std σ c."""
        slices, parts = self.vector.slices, self.vector.parts
        add_noise(slices, parts, self.stream, step, noise_multiplier, threshold, self.source)


def add_noise(
    total: dict[str, torch.Tensor],
    parts: dict[str, Part],
    stream: KeyedStream,
    step: int,
    noise_multiplier: float,
    threshold: float,
    source: CorrelatedNoise,
) -> None:
    """Add noise of std σ c to the sums, on a lattice.

    The noise of a parameter is from the stream of its name. The lattice is that of the whole sum.

    Args:
        total: sums, or slices of them; may be empty.
        parts: the parts of all trained parameters that these sums are of.
    """
    # The lattice of the whole sum, on every rank: its step must not depend on how the sum is cut.
    lattice = lattice_step(threshold, sum(part.count for part in parts.values()))
    std = noise_multiplier * threshold * NOISE_WIDENING
    # Draw and add in pieces that fit the cache.
    for names in _drawn_together(total, parts):
        views = [total[name].view(-1) for name in names]
        sums = views[0] if len(views) == 1 else torch.cat(views)
        own = {name: parts[name] for name in names}
        for place, noise in source.pieces(stream, own, step=step, device=sums.device):
            gradient = sums[place]
            add_lattice_noise(gradient, noise, std=std, step=lattice)
        # Several parameters were added to in one copy, which goes back to them.
        if len(views) > 1:
            torch._foreach_copy_(views, sums.split([len(view) for view in views]))


def _drawn_together(total: dict[str, torch.Tensor], parts: dict[str, Part]) -> list[list[str]]:
    """Return the names in groups. A GPU works on many small whole parameters, a CPU on one."""
    groups: list[list[str]] = []
    room = 0
    for name, gradient in total.items():
        if not gradient.numel():
            continue
        # `normals_on` draws whole streams, so parts of parameters are drawn one by one.
        together = gradient.device.type in MANY_AT_ONCE and parts[name].is_whole
        size = gradient.numel() if together else DRAWN_TOGETHER
        if not groups or size > room:
            groups.append([])
            room = DRAWN_TOGETHER
        groups[-1].append(name)
        room -= size
    return groups
