"""Per-example gradients of a layer's weights, from its input and the gradient of its output.

For a weight that is used linearly, the gradient of example i is a sum over positions t of products of the layer's
input x [B, T, ...] and the gradient g [B, T, ...] of its output. Each rule gives the squared norm of that sum for every
example without writing all of them out where that is cheaper (ghost norms: Goodfellow 2015; Li et al. 2022, section 4),
and the weighted sum over examples that clipping needs (book-keeping: Bu et al. 2023). Whatever has no rule is
differentiated again, example by example (raydp.training.gradients.vjp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

Kind = Literal["linear", "conv1d", "embedding", "scale", "bias", "materialised"]
KnownRule = Literal["linear", "conv1d", "embedding", "norm"]
Rule = KnownRule | Literal["vjp"]


@dataclass(kw_only=True)
class Use:
    """One use of one weight in a forward pass.

    Attributes:
        kind: linear: y = x Wᵀ; conv1d: y = x W; embedding: y = W[x]; scale: y = x ∘ w; bias: y = w; materialised: g is
            the gradient itself.
        x: the input, [B, T, in]; token ids [B, T] for an embedding; unused for a bias and a gradient.
        g: gradient of the summed loss in the output, [B, T, out]; or in the weight, [B, *weight].
    """

    kind: Kind
    x: torch.Tensor | None
    g: torch.Tensor

    @property
    def read(self) -> torch.Tensor:
        """The input of a kind that has one."""
        assert self.x is not None, "unused for a bias and a gradient"
        return self.x

    def grouped(self, size: int) -> Use:
        """The same use with every `size` examples in a row as one: their positions follow each other."""
        if size == 1:
            return self
        if self.kind == "materialised":
            return replace(self, g=self.g.unflatten(0, (-1, size)).sum(dim=1))
        x = None if self.x is None else _in_a_row(self.x, size)
        return replace(self, x=x, g=_in_a_row(self.g, size))

    def gradient(self) -> torch.Tensor | None:
        """[B, *weight] the per-example gradients where writing them out is cheap, else None.

        For a matrix, the cheaper way is also bounded in memory: in · out floats an example where that is at most
        T (in + out), what x and g take themselves, else T² floats with T < min(in, out).
        """
        if self.kind == "embedding":
            return None
        if self.kind in ("linear", "conv1d"):
            positions, inputs, outputs = self.read.shape[1], self.read.shape[2], self.g.shape[2]
            if positions * (inputs + outputs) < inputs * outputs:
                return None  # T² (in + out) < T · in · out: the ghost norm is cheaper
        return self.written_out()

    def written_out(self, shape: torch.Size | None = None) -> torch.Tensor:
        """[B, *weight] the per-example gradients; an embedding needs the weight's shape."""
        if self.kind == "materialised":
            return self.g
        if self.kind == "bias":
            return self.g.sum(dim=1)
        if self.kind == "scale":
            return (self.g * self.read).sum(dim=1)
        if self.kind == "embedding":
            assert shape is not None
            out = self.g.new_zeros(len(self.g), *shape)
            return out.scatter_add_(1, self.read[:, :, None].expand_as(self.g), self.g)
        x, g = self.read.to(self.g.dtype), self.g
        gradient: torch.Tensor = (
            torch.einsum("bto,bti->boi", g, x) if self.kind == "linear" else torch.einsum("bti,bto->bio", x, g)
        )
        return gradient

    def norm_squared(self) -> torch.Tensor:
        """[B] ‖Σ_t x_t g_tᵀ‖² = Σ_{t,s} (x_t · x_s)(g_t · g_s), the ghost norm; for an embedding over its distinct ids.

        Where the positions cancel, rounding could make the sum too small, and the example would be clipped too little.
        The allowance, 4 units in the last place of sqrt(width) Σ_t ‖x_t‖² ‖g_t‖², keeps it from that: rounding of inner
        products of that width (Higham 2002, section 4.2, probabilistic). It is 1e-6 of the norm where nothing cancels.
        """
        if self.kind == "embedding":
            return self._norm_squared_by_id()
        x = self.read.to(self.g.dtype)
        terms, width = torch.bmm(self.g, self.g.mT) * torch.bmm(x, x.mT), max(self.g.shape[2], x.shape[2])
        allowance = 4 * 2.0**-24 * width**0.5 * torch.diagonal(terms, dim1=1, dim2=2).sum(dim=1)
        squares: torch.Tensor = terms.sum(dim=(1, 2)) + allowance
        return squares

    def _norm_squared_by_id(self) -> torch.Tensor:
        """[B] Σ_v ‖Σ_{t: id_t = v} g_t‖², no more memory than g takes, where T² products could exceed it.

        The allowance is that of `norm_squared`: without it, positions of one id that cancel would enter the sum
        unclipped, and round away what others added there before.
        """
        rows = torch.arange(len(self.read), device=self.read.device)[:, None]
        keys = rows * (self.read.max() + 1) + self.read
        distinct, group, counts = torch.unique(keys, return_inverse=True, return_counts=True)
        summed = self.g.new_zeros(len(distinct), self.g.shape[2])
        summed.index_add_(0, group.flatten(), self.g.flatten(0, 1))
        shares = summed.square().sum(dim=1) / counts  # each position has its part, so that one sum over t adds up
        allowance = 4 * 2.0**-24 * self.g.shape[2] ** 0.5 * self.g.square().sum(dim=(1, 2))
        squares: torch.Tensor = shares[group].sum(dim=1) + allowance
        return squares

    def inner(self, weight: torch.Tensor, gradient: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """[B] inner product of each example's gradient with a tensor of the weight's shape, and how far rounding may
        take it from the true one: 4 units in the last place of sqrt(width) times the size of what is summed.

        Args:
            gradient: [B, *weight], where it is written out.
        """
        unit = 4 * 2.0**-24
        if gradient is not None:
            flat, tensor = gradient.flatten(1), weight.flatten()
            return flat @ tensor, unit * flat.shape[1] ** 0.5 * flat.norm(dim=1) * tensor.norm()
        if self.kind == "embedding":
            picked, size = weight[self.read], weight[self.read].norm(dim=2)
        else:
            x = self.read.to(self.g.dtype)
            picked = x @ (weight.T if self.kind == "linear" else weight)
            size = x.norm(dim=2) * weight.norm()
        width = max(weight.shape)
        return (self.g * picked).sum(dim=(1, 2)), unit * width**0.5 * (self.g.norm(dim=2) * size).sum(dim=1)

    def weighted_sum(self, weights: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """[*weight] Σ_i weights_i · (gradient of example i), of a kind that is not written out."""
        if self.kind == "embedding":
            weighted = self.g * weights[:, None, None]
            out = weighted.new_zeros(shape)
            return out.index_add_(0, self.read.reshape(-1), weighted.reshape(-1, weighted.shape[-1]))
        x, g = self.read.to(self.g.dtype), self.g
        if x.shape[-1] < g.shape[-1]:  # the narrower factor is scaled: less to read and write
            x = x * weights[:, None, None]
        else:
            g = g * weights[:, None, None]
        x, g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
        return g.T @ x if self.kind == "linear" else x.T @ g


def _in_a_row(values: torch.Tensor, size: int) -> torch.Tensor:
    """[B / size, size · T, ...] the positions of every `size` examples after one another."""
    return values.reshape(-1, size * values.shape[1], *values.shape[2:])


def joined(uses: Sequence[Use], shape: torch.Size) -> list[Use]:
    """All uses of one weight as one, or as the two of an embedding that is also the output layer.

    Several calls of one kind are one call on the joined positions. Kinds that are mixed otherwise are written out and
    added, for the norm is that of the sum.
    """
    kinds: dict[Kind, Use] = {}
    for use in uses:
        first = kinds.get(use.kind)
        if first is None:
            kinds[use.kind] = use
        elif use.kind == "materialised":
            kinds[use.kind] = replace(first, g=first.g + use.g)
        else:
            x = None if use.x is None else torch.cat([first.read, use.read], dim=1)
            kinds[use.kind] = replace(first, x=x, g=torch.cat([first.g, use.g], dim=1))
    if len(kinds) == 1 or set(kinds) == {"embedding", "linear"}:
        return list(kinds.values())
    return [Use(kind="materialised", x=None, g=torch.stack([u.written_out(shape) for u in kinds.values()]).sum(dim=0))]


def cross_term(embedding: Use, head: Use) -> torch.Tensor:
    """[B] inner product of the two gradients of a weight that is both the embedding and the output layer:
    Σ_{t,s} g_head[s, id_t] · (g_embedding[t] · x_head[s])."""
    ids = embedding.read[:, None, :].expand(-1, head.g.shape[1], -1)
    picked = torch.gather(head.g, 2, ids)  # [B, s, t]
    return (picked * torch.bmm(head.read.to(embedding.g.dtype), embedding.g.mT)).sum(dim=(1, 2))


def rule_of(module: nn.Module, names: Sequence[str]) -> Rule:
    """Which rule a layer follows, by the function that it computes: a subclass with another one has none.

    Args:
        names: its own weights that are trained.

    Returns:
        "norm" for everything that is called a norm, which `scales_last_dimension` must confirm.
    """
    exact: dict[object, Rule] = {
        nn.Linear.forward: "linear",
        Conv1D.forward: "conv1d",
        nn.Embedding.forward: "embedding",
    }
    forward = type(module).forward
    if forward in exact and set(names) <= {"weight", "bias"}:
        return exact[forward]
    return "norm" if type(module).__name__.endswith("Norm") else "vjp"


def uses_of(
    module: nn.Module, rule: KnownRule, names: Sequence[str], x: torch.Tensor, g: torch.Tensor
) -> dict[str, Use]:
    """The uses of a module's own weights in one call.

    Args:
        names: the module's weights that are trained: "weight", "bias".
        x: its input, [B, ..., in] or [B, in]; ids [B, ...] or [B] for an embedding.
        g: gradient of its output, the same leading shape.
    """
    if rule == "embedding":
        g = g.float()
        padding = cast(nn.Embedding, module).padding_idx
        if padding is not None:  # its row takes no gradient, as in torch
            g = g.masked_fill((x == padding)[..., None], 0.0)
        return {"weight": Use(kind="embedding", x=x.reshape(len(x), -1), g=g.reshape(len(x), -1, g.shape[-1]))}
    if g.dim() == 2:
        x, g = x[:, None], g[:, None]
    g = g.flatten(1, -2).float()
    if rule == "norm":
        weight = Use(kind="scale", x=_normalised(module, x).flatten(1, -2).float(), g=g)
    else:
        weight = Use(kind=rule, x=x.flatten(1, -2), g=g)
    return {name: weight if name == "weight" else Use(kind="bias", x=None, g=g) for name in names}


def close_by_example(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """[B] whether two outputs of a layer are the same function's: to half of their type's digits, in the norm. An
    example that is not finite counts as close; it contributes nothing to a sum."""
    difference = (actual.float() - expected.float()).flatten(1).norm(dim=1)
    size = expected.float().flatten(1).norm(dim=1)
    far: torch.Tensor = difference > torch.finfo(expected.dtype).eps ** 0.5 * size
    return ~far


def _normalised(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a norm layer multiplies its weight with: the layer is affine in the weight, so f(1) - f(0)."""
    own = stand_ins(module, x)
    one, zero = (functional_call(module, own | {"weight": torch.full_like(own["weight"], v)}, (x,)) for v in (1.0, 0.0))
    scaled: torch.Tensor = one - zero
    return scaled


def stand_ins(module: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Zeros like a layer's own weights, on the device of x; of a sharded model's weights only a part is at hand."""
    return {
        name: torch.zeros(p.shape, dtype=p.dtype, device=x.device)
        for name, p in module._parameters.items()
        if p is not None
    }


def scales_last_dimension(module: nn.Module, x: torch.Tensor) -> bool:
    """Whether a layer computes x̂ ∘ w + b along the last dimension, x̂ from the example alone: tried, not believed, with
    weights that tell one coordinate from the other, on two random examples of the shape of x's."""
    own = stand_ins(module, x)
    if not set(own) <= {"weight", "bias"} or "weight" not in own or any(p.shape != x.shape[-1:] for p in own.values()):
        return False
    tried = {name: torch.linspace(0.5, 2, p.numel(), device=p.device).to(p) for name, p in own.items()}
    two = torch.randn((2, *x.shape[1:]), generator=torch.Generator().manual_seed(0)).to(x)
    output, base, alone = (functional_call(module, w, (v,)) for w, v in ((tried, two), (own, two), (tried, two[:1])))
    expected = base + _normalised(module, two) * tried["weight"] + tried.get("bias", 0.0)
    return bool(close_by_example(output, expected).all() and close_by_example(alone, output[:1]).all())
