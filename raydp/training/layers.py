"""Per-example gradients of a layer's weights, from its input and the gradient of its output.

For a weight that is used linearly, the gradient of example i is a sum over positions t of products of the layer's
input x [B, T, ...] and the gradient g [B, T, ...] of its output. Each rule gives the squared norm of that sum for every
example without writing all of them out where that is cheaper (ghost norms: Goodfellow 2015; Li et al. 2022, section 4),
and the weighted sum over examples that clipping needs (book-keeping: Bu et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

Kind = Literal["linear", "conv1d", "embedding", "scale", "bias"]


@dataclass(kw_only=True)
class Use:
    """One use of one weight in a forward pass.

    Attributes:
        kind: linear: y = x Wᵀ; conv1d: y = x W; embedding: y = W[x]; scale: y = x ∘ w; bias: y = w.
        x: the input, [B, T, in]; token ids [B, T] for an embedding; unused for a bias.
        g: gradient of the summed loss in the output, [B, T, out].
    """

    kind: Kind
    x: torch.Tensor | None
    g: torch.Tensor

    def grouped(self, size: int) -> Use:
        """The same use with every `size` examples in a row as one: their positions follow each other."""
        if size == 1:
            return self
        x, g = (None if t is None else t.reshape(-1, size * t.shape[1], *t.shape[2:]) for t in (self.x, self.g))
        return replace(self, x=x, g=g)

    def gradient(self) -> torch.Tensor | None:
        """[B, *weight] the per-example gradients where writing them out is cheap, else None."""
        if self.kind == "bias":
            return self.g.sum(dim=1)
        if self.kind == "scale":
            return (self.g * self.x).sum(dim=1)
        if self.kind == "embedding":
            return None
        x, g = self.x.to(self.g.dtype), self.g
        if x.shape[1] * (x.shape[2] + g.shape[2]) < x.shape[2] * g.shape[2]:
            return None  # T² (in + out) < T · in · out: the ghost norm is cheaper
        return torch.einsum("bto,bti->boi", g, x) if self.kind == "linear" else torch.einsum("bti,bto->bio", x, g)

    def ghost_norm_squared(self) -> torch.Tensor:
        """[B] ‖Σ_t x_t g_tᵀ‖² = Σ_{t,s} (x_t · x_s)(g_t · g_s); ids in place of x: 1 where they are equal.

        Where the positions cancel, rounding could make the sum too small, and the example would be clipped too little.
        The allowance, 4 units in the last place of sqrt(width) Σ_t ‖x_t‖² ‖g_t‖², keeps it from that: rounding of inner
        products of that width (Higham 2002, section 4.2, probabilistic). It is 1e-6 of the norm where nothing cancels.
        """
        similar = torch.bmm(self.g, self.g.mT)
        if self.kind == "embedding":
            terms, width = similar * (self.x[:, :, None] == self.x[:, None, :]), self.g.shape[2]
        else:
            x = self.x.to(self.g.dtype)
            terms, width = similar * torch.bmm(x, x.mT), max(self.g.shape[2], x.shape[2])
        allowance = 4 * 2.0**-24 * width**0.5 * torch.diagonal(terms, dim1=1, dim2=2).sum(dim=1)
        return terms.sum(dim=(1, 2)) + allowance

    def weighted_sum(self, weights: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """[*weight] Σ_i weights_i · (gradient of example i)."""
        if self.kind == "embedding":
            weighted = self.g * weights[:, None, None]
            out = weighted.new_zeros(shape)
            return out.index_add_(0, self.x.reshape(-1), weighted.reshape(-1, weighted.shape[-1]))
        x, g = self.x.to(self.g.dtype), self.g
        if x.shape[-1] < g.shape[-1]:  # the narrower factor is scaled: less to read and write
            x = x * weights[:, None, None]
        else:
            g = g * weights[:, None, None]
        x, g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
        return g.T @ x if self.kind == "linear" else x.T @ g


def cross_term(embedding: Use, head: Use) -> torch.Tensor:
    """[B] inner product of the two gradients of a weight that is both the embedding and the output layer:
    Σ_{t,s} g_head[s, id_t] · (g_embedding[t] · x_head[s])."""
    ids = embedding.x[:, None, :].expand(-1, head.g.shape[1], -1)
    picked = torch.gather(head.g, 2, ids)  # [B, s, t]
    return (picked * torch.bmm(head.x.to(embedding.g.dtype), embedding.g.mT)).sum(dim=(1, 2))


def uses_of(module: nn.Module, names: list[str], x: torch.Tensor, g: torch.Tensor) -> dict[str, Use]:
    """The uses of a module's own weights in one call.

    Args:
        names: the module's weights that are trained: "weight", "bias".
        x: its input, [B, T, in], [B, in], or ids [B, T].
        g: gradient of its output, the same leading shape.

    Raises:
        ValueError: no rule is known for the layer.
    """
    if isinstance(module, nn.Embedding):
        return {"weight": Use(kind="embedding", x=x, g=g.float())}
    if g.dim() == 2:
        x, g = x[:, None], g[:, None]
    g = g.flatten(1, -2).float()
    if isinstance(module, nn.Linear | Conv1D):
        kind: Kind = "linear" if isinstance(module, nn.Linear) else "conv1d"
        weight = Use(kind=kind, x=x.flatten(1, -2), g=g)
    elif type(module).__name__.endswith("Norm") and module.weight.dim() == 1:
        weight = Use(kind="scale", x=_normalised(module, x).flatten(1, -2).float(), g=g)
    else:
        raise ValueError(unsupported(type(module).__name__))
    return {name: weight if name == "weight" else Use(kind="bias", x=None, g=g) for name in names}


def unsupported(layer: str) -> str:
    """The message for a layer without a rule."""
    return (
        f"model.adapter must train layers whose per-example gradients are known, got {layer}. Known: Linear, Conv1D, "
        "Embedding and the 1-D weights of LayerNorm and RMSNorm. Choose other target_modules."
    )


def _normalised(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a norm layer multiplies its weight with: the layer is affine in the weight, so f(1) - f(0)."""
    weight = module.weight
    one, zero = (functional_call(module, {"weight": torch.full_like(weight, v)}, (x,)) for v in (1.0, 0.0))
    return one - zero
