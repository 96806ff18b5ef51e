"""The sums of all trained parameters in one vector, and the slice that one rank adds noise to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from raydp.training import sharding
from raydp.training.comm import Comm, LocalComm, slice_of


@dataclass(frozen=True, kw_only=True)
class GradientVector:
    """The sums of all trained parameters in one fp32 vector, so that ranks exchange one message.

    The views are also the gradients that the optimizer reads. If the parameters are sharded, the
    vector holds this rank's parts, and no other rank holds the same sums.

    Attributes:
        flat: [d].
        views: name -> the parameter's part of `flat`, in the parameter's shape.
        slices: name -> the part of the view that this rank adds noise to; may be empty.
        parts: name -> which part of the whole parameter the slice is.
        holders: the ranks that hold the same sums.
    """

    flat: torch.Tensor
    views: dict[str, torch.Tensor]
    slices: dict[str, torch.Tensor]
    parts: dict[str, sharding.Part]
    holders: Comm

    @classmethod
    def of(cls, parameters: dict[str, nn.Parameter], comm: Comm) -> GradientVector:
        """Return a vector of zeros whose views are the parameters' gradients from now on."""
        # One flat vector, of which every parameter's sum and gradient are views: no copies in a
        # step.
        held = {name: sharding.local(p) for name, p in parameters.items()}
        flat = torch.zeros(sum(values.numel() for values in held.values()), device=comm.device)
        pieces = flat.split([values.numel() for values in held.values()])
        views = {
            name: piece.view(held[name].shape) for name, piece in zip(held, pieces, strict=True)
        }
        for name, parameter in parameters.items():
            parameter.grad = sharding.like(parameter, views[name])
        # Sharded parts are held by this rank alone, so it adds all of their noise itself.
        holders = LocalComm(comm.device) if sharding.in_parts(parameters) else comm
        whole = {name: sharding.part_of(p) for name, p in parameters.items()}
        slices, parts = _own_slices(views, whole, holders)
        return cls(flat=flat, views=views, slices=slices, parts=parts, holders=holders)

    def sum_over_ranks(self) -> None:
        """Replace the vector by its sum over the ranks that hold the same sums."""
        self.holders.all_reduce_sum(self.flat)

    def exchange_slices(self) -> None:
        """Take the other ranks' slices, which have noise, in place of this rank's copies."""
        self.holders.exchange_slices(self.flat)


def _own_slices(
    views: dict[str, torch.Tensor], whole: dict[str, sharding.Part], holders: Comm
) -> tuple[dict[str, torch.Tensor], dict[str, sharding.Part]]:
    """Return this rank's slice of each view, and which part of the parameter the slice is.

    Args:
        views: the sums, in the order in which they lie in the vector.
        whole: the part of each parameter that its view is of.
    """
    length = sum(view.numel() for view in views.values())
    # Each rank adds noise to its own slice of the vector, so every coordinate gets it once.
    own = slice_of(holders.rank, holders.world_size, length)
    slices, parts, first = {}, {}, 0
    for name, view in views.items():
        size = view.numel()
        # The part of this view that lies in the rank's slice; empty if they do not meet.
        start, stop = (min(max(edge - first, 0), size) for edge in (own.start, own.stop))
        slices[name] = view.view(-1)[start:stop]
        held = whole[name]
        parts[name] = sharding.Part(
            count=held.count, start=held.start + start, stop=held.start + stop
        )
        first += size
    return slices, parts
