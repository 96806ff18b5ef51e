"""Per-example gradients of a layer's weights, from its input and the gradient of its output.

For a weight that is used linearly, the gradient of example i is a sum over positions t of products
of the layer's input x [B, T, ...] and the gradient g [B, T, ...] of its output. Each rule gives two
results. The first is the squared norm of this sum for every example, without writing out all
gradients if that is cheaper (ghost norms: Goodfellow 2015; Li et al. 2022, section 4). The second
is the weighted sum over examples that clipping needs (book-keeping: Bu et al. 2023). Layers without
a rule are differentiated again, example by example (raydp.training.gradients.vjp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import nn
from torch.func import functional_call
from transformers.pytorch_utils import Conv1D

from raydp.models.vector_layers import VectorProduct
from raydp.training.gradients import narrow_products

Kind = Literal["linear", "conv1d", "embedding", "scale", "bias", "materialised"]
KnownRule = Literal["linear", "conv1d", "embedding", "norm", "shifted_norm", "scale"]
Rule = KnownRule | Literal["vjp"]

CANCELLED = 64
"""Below this multiple of the rounding, a squared norm gets an allowance for the rounding."""


@dataclass(kw_only=True)
class Use:
    """One use of one weight in a forward pass.

    Attributes:
        kind: linear: y = x Wᵀ; conv1d: y = x W; embedding: y = W[x]; scale: y = x ∘ w; bias: y = w;
            materialised: g is the gradient of the weight itself.
        x: the input, [B, T, in]; token ids [B, T] for an embedding; None for bias and materialised.
        g: gradient of the summed loss by the output, [B, T, out]; if materialised by the weight,
            [B, *weight]. It is fp32, or of linear and conv1d in 16 bits where a product of such
            numbers has 32-bit sums.
    """

    kind: Kind
    x: torch.Tensor | None
    g: torch.Tensor

    @property
    def read(self) -> torch.Tensor:
        """Return the input of a kind that has an input."""
        assert self.x is not None, "unused for a bias and a gradient"
        return self.x

    def grouped(self, size: int) -> Use:
        """Merge every `size` successive examples into one, with their positions in a row."""
        if size == 1:
            return self
        if self.kind == "materialised":
            return replace(self, g=self.g.unflatten(0, (-1, size)).sum(dim=1))
        x = None if self.x is None else _in_a_row(self.x, size)
        return replace(self, x=x, g=_in_a_row(self.g, size))

    def gradient(self) -> torch.Tensor | None:
        """Return [B, *weight] the per-example gradients if writing them out is cheap, else None.

        For a matrix, the cheaper way also bounds the memory. Written-out gradients take in · out
        floats an example, if this is at most T (in + out), the size of x and g. Otherwise the ghost
        norm takes T² floats with T < min(in, out).
        """
        if self.kind == "embedding":
            return None
        if self.kind in ("linear", "conv1d"):
            positions, inputs, outputs = self.read.shape[1], self.read.shape[2], self.g.shape[2]
            if positions * (inputs + outputs) < inputs * outputs:
                return None  # T² (in + out) < T · in · out: the ghost norm is cheaper
        return self.written_out()

    def written_out(self, shape: torch.Size | None = None) -> torch.Tensor:
        """Return [B, *weight] the per-example gradients. An embedding needs the weight's shape."""
        if self.kind == "materialised":
            return self.g
        if self.kind == "bias":
            return self.g.sum(dim=1, dtype=torch.float32)
        if self.kind == "scale":
            return (self.g * self.read).sum(dim=1)
        if self.kind == "embedding":
            assert shape is not None
            out = self.g.new_zeros(len(self.g), *shape)
            return out.scatter_add_(1, self.read[:, :, None].expand_as(self.g), self.g)
        # ∂ℓ/∂W of one example is Σ_t g_t x_tᵀ: a product over positions.
        x, g = self.read.to(self.g.dtype), self.g
        return (
            narrow_products.batched(g.mT, x)
            if self.kind == "linear"
            else narrow_products.batched(x.mT, g)
        )

    def norm_squared(self) -> torch.Tensor:
        """Return [B] ‖Σ_t x_t g_tᵀ‖² = Σ_{t,s} (x_t · x_s)(g_t · g_s), the ghost norm.

        Embeddings sum by distinct id.

        If positions cancel, rounding could make the sum too small, and the example would be clipped
        too little. An allowance prevents this. γ is the rounding of inner products of this width (4
        units in the last place of sqrt(width); Higham 2002, section 4.2, probabilistic; in 16 bits
        `narrow_products.largest_error`). The allowance is γ Σ_t a_t² for a_t = ‖x_t‖ ‖g_t‖, the sum
        of independent errors of the T² terms. It is 1e-6 of the norm if nothing cancels. Where
        positions repeat, the errors of their terms repeat too, and come to at most γ (Σ_t a_t)².
        That much is allowed where the sum is less than CANCELLED times it. Above that the norm can
        be too small by at most a share of 1 / (2 CANCELLED), and only if the errors repeat.
        """
        if self.kind == "embedding":
            return self._norm_squared_by_id()
        x = self.read.to(self.g.dtype)
        product, width = narrow_products.batched, max(self.g.shape[2], x.shape[2])
        squares, roots, diagonal = narrow_products.sums_of_terms(
            product(self.g, self.g.mT), product(x, x.mT)
        )
        error = (
            narrow_products.largest_error(width) if self.is_narrow() else 4 * 2.0**-24 * width**0.5
        )
        repeated = error * roots.square()
        return squares + torch.where(squares < CANCELLED * repeated, repeated, error * diagonal)

    def _norm_squared_by_id(self) -> torch.Tensor:
        """Return [B] Σ_v ‖Σ_{t: id_t = v} g_t‖².

        It takes as much memory as g, while T² products could take more.

        The allowance is the same as in `norm_squared`. Without it, positions of one id that cancel
        would enter the sum unclipped, and their rounding would change the values that are already
        in the sum.
        """
        # Number the distinct pairs of example and id. A count of them would have to be waited for
        # on a GPU.
        rows = torch.arange(len(self.read), device=self.read.device)[:, None]
        keys, order = (rows * (self.read.max() + 1) + self.read).flatten().sort()
        numbers = torch.zeros_like(keys)
        numbers[1:] = (keys[1:] != keys[:-1]).cumsum(0)
        group = torch.empty_like(numbers).scatter_(0, order, numbers)
        # Sum the gradients of each pair. Each position gets its share of the square, so that one
        # sum over t adds up.
        summed = torch.zeros_like(self.g.flatten(0, 1)).index_add_(0, group, self.g.flatten(0, 1))
        counts = self.g.new_zeros(len(group)).index_add_(0, group, self.g.new_ones(len(group)))
        # Each position gets its share of the square.
        shares = (summed.square().sum(dim=1) / counts)[group].view(self.read.shape)
        allowance = 4 * 2.0**-24 * self.g.shape[2] ** 0.5 * self.g.square().sum(dim=(1, 2))
        squares: torch.Tensor = shares.sum(dim=1) + allowance
        return squares

    def inner(
        self, weight: torch.Tensor, gradient: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return [B] inner products of the examples' gradients with a tensor, and [B] errors.

        The tensor has the weight's shape.

        The error bounds the rounding: 4 units in the last place of sqrt(width) times the size of
        the summands.

        Args:
            gradient: [B, *weight], if it is written out.
        """
        unit = 4 * 2.0**-24
        if gradient is not None:
            flat, tensor = gradient.flatten(1), weight.flatten()
            return flat @ tensor, unit * flat.shape[1] ** 0.5 * flat.norm(dim=1) * tensor.norm()
        g = self.g.float()
        if self.kind == "embedding":
            picked, size = weight[self.read], weight[self.read].norm(dim=2)
        else:
            x = self.read.float()
            picked = x @ (weight.T if self.kind == "linear" else weight)
            size = x.norm(dim=2) * weight.norm()
        width = max(weight.shape)
        return (g * picked).sum(dim=(1, 2)), unit * width**0.5 * (g.norm(dim=2) * size).sum(dim=1)

    def weighted_sum(self, weights: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Return [*weight] Σ_i weights_i · (gradient of example i), if it is not written out."""
        if self.kind == "embedding":
            weighted = self.g * weights[:, None, None]
            out = weighted.new_zeros(shape)
            return out.index_add_(
                0, self.read.reshape(-1), weighted.reshape(-1, weighted.shape[-1])
            )
        x, g = self.read.to(self.g.dtype), self.g
        if x.shape[-1] < g.shape[-1]:  # scaling the narrower factor reads and writes less
            x = x * weights[:, None, None]
        else:
            g = g * weights[:, None, None]
        x, g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
        return g.T @ x if self.kind == "linear" else x.T @ g

    def is_narrow(self) -> bool:
        """Return whether the input and the gradient have 16 bits and their products 32."""
        return self.kind in ("linear", "conv1d") and narrow_products.is_narrow(self.g)

    def add_weighted_sum(self, into: torch.Tensor, weights: torch.Tensor) -> None:
        """Add Σ_i weights_i · (gradient of example i) to an fp32 tensor [*weight], in place."""
        if self.is_narrow():
            left, right = (self.g, self.read) if self.kind == "linear" else (self.read, self.g)
            narrow_products.add_weighted_sum(into, left, right, weights)
        else:
            into += self.weighted_sum(weights, into.shape)


def _in_a_row(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return [B / size, size · T, ...]: the positions of `size` successive examples in a row."""
    return values.reshape(-1, size * values.shape[1], *values.shape[2:])


def joined(uses: Sequence[Use], shape: torch.Size) -> list[Use]:
    """Merge all uses of one weight into one, or into two if the embedding is also the output layer.

    Calls of one kind become one call on the joined positions. Other mixtures of kinds are written
    out and added, because the norm is the norm of the sum.
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
    # An embedding and a linear use stay apart, because their cross term is cheap (`cross_term`).
    if len(kinds) == 1 or set(kinds) == {"embedding", "linear"}:
        return list(kinds.values())
    return [
        Use(
            kind="materialised",
            x=None,
            g=torch.stack([u.written_out(shape) for u in kinds.values()]).sum(dim=0),
        )
    ]


def cross_term(embedding: Use, head: Use) -> torch.Tensor:
    """Return [B] the inner product of a tied weight's two gradients.

    The weight is both the embedding and the output layer.

    It is Σ_{t,s} g_head[s, id_t] · (g_embedding[t] · x_head[s]).
    """
    ids = embedding.read[:, None, :].expand(-1, head.g.shape[1], -1)
    picked = torch.gather(head.g, 2, ids)  # [B, s, t]
    return (picked * torch.bmm(head.read.to(embedding.g.dtype), embedding.g.mT)).sum(dim=(1, 2))


def rule_of(module: nn.Module, names: Sequence[str]) -> Rule:
    """Return the rule of a layer, by the function that it computes.

    A subclass with another function has no rule.

    Args:
        names: the layer's own weights that are trained.

    Returns:
        "norm" for every layer whose class name ends in "Norm"; `norm_rule` must confirm it.
    """
    if isinstance(module, VectorProduct):
        return "scale"
    exact: dict[object, Rule] = {
        nn.Linear.forward: "linear",
        Conv1D.forward: "conv1d",
        nn.Embedding.forward: "embedding",
    }
    # By the function, not the class: a subclass may compute something else.
    forward = type(module).forward
    if forward in exact and set(names) <= {"weight", "bias"}:
        return exact[forward]
    return "norm" if type(module).__name__.endswith("Norm") else "vjp"


def uses_of(
    module: nn.Module, rule: KnownRule, names: Sequence[str], x: torch.Tensor, g: torch.Tensor
) -> dict[str, Use]:
    """Return the uses of a module's own weights in one call.

    Args:
        names: the module's weights that are trained: "weight", "bias"; of a `VectorProduct`, its
            only one.
        x: its input, [B, ..., in] or [B, in]; ids [B, ...] or [B] for an embedding.
        g: gradient of its output, with the same leading shape.
    """
    if rule == "embedding":
        g = g.float()
        padding = cast(nn.Embedding, module).padding_idx
        if padding is not None:  # the padding row takes no gradient, as in torch
            g = g.masked_fill((x == padding)[..., None], 0.0)
        return {
            "weight": Use(
                kind="embedding", x=x.reshape(len(x), -1), g=g.reshape(len(x), -1, g.shape[-1])
            )
        }
    # An input without positions has one.
    if g.dim() == 2:
        x, g = x[:, None], g[:, None]
    g = g.flatten(1, -2)
    # 16-bit factors stay as they are where products have 32-bit sums; all others are taken in fp32.
    if rule in ("linear", "conv1d") and narrow_products.is_narrow(g):
        x = x.to(g.dtype)  # as the layer multiplied it
    else:
        g = g.float()
    # The factor of the weight: x̂ for a norm layer, else the input itself.
    if rule in ("norm", "shifted_norm"):
        factor = _normalised(module, x, shifted=rule == "shifted_norm")
        weight = Use(kind="scale", x=factor.flatten(1, -2).float(), g=g)
    elif rule in ("linear", "conv1d"):
        weight = Use(kind=rule, x=x.flatten(1, -2), g=g)
    else:
        weight = Use(kind="scale", x=x.flatten(1, -2).float(), g=g)
    return {name: Use(kind="bias", x=None, g=g) if name == "bias" else weight for name in names}


def close_by_example(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return [B] whether two outputs of a layer agree to half of the digits of their dtype.

    They are compared in the norm.

    An example that is not finite counts as close, because it contributes nothing to a sum.
    """
    difference = (actual.float() - expected.float()).flatten(1).norm(dim=1)
    size = expected.float().flatten(1).norm(dim=1)
    # Written as "not far", so that NaN counts as close: such an example is left out of the sum.
    far: torch.Tensor = difference > torch.finfo(expected.dtype).eps ** 0.5 * size
    return ~far


def _normalised(module: nn.Module, x: torch.Tensor, *, shifted: bool) -> torch.Tensor:
    """Return the factor of a norm layer's weight.

    The layer is affine in the weight, so the factor is f(1) - f(0).

    Args:
        shifted: whether f(0) may differ from 0, as in a layer that computes x̂ (1 + w).
    """
    own = stand_ins(module, x)
    one: torch.Tensor = functional_call(
        module, own | {"weight": torch.ones_like(own["weight"])}, (x,)
    )
    if not shifted:
        return one
    zero: torch.Tensor = functional_call(module, own, (x,))
    return one - zero


def stand_ins(module: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return zeros like a layer's own weights, on the device of x.

    (A sharded model holds only parts of them.)
    """
    return {
        name: torch.zeros(p.shape, dtype=p.dtype, device=x.device)
        for name, p in module._parameters.items()
        if p is not None
    }


def norm_rule(module: nn.Module, x: torch.Tensor) -> Literal["norm", "shifted_norm", "vjp"]:
    """Return the rule of a layer that may compute x̂ ∘ w + b along the last dimension.

    x̂ must come from the example alone.

    The layer is tested on two random examples of x's shape, with weights that differ in every
    coordinate.

    Returns:
        "norm"; "shifted_norm" if its output for w = b = 0 is not 0; "vjp" if it computes something
        else.
    """
    own = stand_ins(module, x)
    if (
        not set(own) <= {"weight", "bias"}
        or "weight" not in own
        or any(p.shape != x.shape[-1:] for p in own.values())
    ):
        return "vjp"
    # Weights that differ everywhere: equal ones could hide a layer that permutes or mixes them.
    tried = {
        name: torch.linspace(0.5, 2, p.numel(), device=p.device).to(p) for name, p in own.items()
    }
    two = torch.randn((2, *x.shape[1:]), generator=torch.Generator().manual_seed(0)).to(x)
    output, base, alone = (
        functional_call(module, w, (v,)) for w, v in ((tried, two), (own, two), (tried, two[:1]))
    )
    expected = (
        base + _normalised(module, two, shifted=True) * tried["weight"] + tried.get("bias", 0.0)
    )
    # Affine in the weight with the expected factor, and independent of the other example.
    if not (close_by_example(output, expected).all() and close_by_example(alone, output[:1]).all()):
        return "vjp"
    return "shifted_norm" if bool(base.any()) else "norm"
