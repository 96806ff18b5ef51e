"""The clipped sum of per-example gradients, in one backward pass.

Every trained layer keeps its input; the backward pass of the summed loss gives the gradient of each layer's output,
and from the two come the per-example norms and the sum of the clipped gradients. The weights themselves take no
gradient, so the pass costs what a pass through activations costs, and it stops at the first trained layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from raydp.training.layers import Use, cross_term, unsupported, uses_of
from raydp.training.thresholds import Clipping


class ClippedGradients:
    """Sums clipped per-example gradients of a model's trained parameters.

    Args:
        model: in eval mode (dropout would couple the guarantee to an unkeyed generator).
        parameters: name -> trained parameter; all others are left alone.
        clipping: what an example's gradient is scaled by, from its norm over all parameters.

    Guarantee:
        Adding or removing one unit (an example, or all examples of a user) changes the sum by at most
        clipping.max_grad_norm in the L2 norm over all parameters, up to fp32 rounding, provided that the loss of an
        example depends on that example alone.

    Raises:
        ValueError: a trained parameter belongs to a layer without a per-example rule; names the layer.
    """

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter], clipping: Clipping) -> None:
        assert not model.training, "per-example gradients need eval mode"
        self.model = model
        self.parameters = parameters
        self.clipping = clipping
        by_id = {id(p): name for name, p in parameters.items()}
        self._modules: dict[nn.Module, dict[str, str]] = {}  # module -> its own weight name -> parameter name
        for path, module in model.named_modules():
            own = {n: by_id[id(p)] for n, p in module._parameters.items() if p is not None and id(p) in by_id}
            if own:
                self._modules[module] = own
                if set(own) - {"weight", "bias"}:
                    raise ValueError(unsupported(f"{type(module).__name__} {path!r}"))

    def accumulate(
        self, loss_fn: Callable[[], torch.Tensor], total: dict[str, torch.Tensor], examples_per_unit: int = 1
    ) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch to a running sum.

        Args:
            loss_fn: runs the model and returns the per-example losses [B].
            total: parameter name -> running sum, fp32, changed in place.
            examples_per_unit: m examples in a row are one unit of privacy, of U = B / m; the sum of their gradients is
                clipped (user-level DP-SGD with user-level sampling: McMahan et al. 2018; Charles et al. 2024).

        Returns:
            [2, U]: the mean loss of each unit and its gradient's norm before clipping.
        """
        with self._recording() as calls:
            losses = loss_fn()
            losses.sum().backward()
        with torch.no_grad():
            uses = self._collect(calls, len(losses), examples_per_unit)
            gradients = {name: [u.gradient() for u in used] for name, used in uses.items()}
            norms = (
                torch.stack([_norm_squared(used, gradients[n]) for n, used in uses.items()]).sum(0).clamp(min=0).sqrt()
            )
            finite = torch.isfinite(norms)
            factors = torch.where(finite, self.clipping.factors(norms), 0.0)
            for name, used in uses.items():
                for use, gradient in zip(used, gradients[name], strict=True):
                    total[name] += _clipped_sum(use, gradient, factors, finite, total[name].shape)
            return torch.stack([losses.detach().float().view(-1, examples_per_unit).mean(dim=1), norms])

    @contextmanager
    def _recording(self) -> Iterator[list[tuple[nn.Module, torch.Tensor, torch.Tensor]]]:
        """Collect (module, input, gradient of the output) of every call of a trained layer."""
        calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]] = []

        def forward_hook(module: nn.Module, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            if not output.requires_grad:
                output.requires_grad_(True)  # a leaf: the backward pass ends here
            x = args[0].detach()
            output.register_hook(lambda g: calls.append((module, x, g.detach())))

        required = {p: p.requires_grad for p in self.parameters.values()}
        handles = [module.register_forward_hook(forward_hook) for module in self._modules]
        try:
            for parameter in required:
                parameter.requires_grad_(False)
            yield calls
        finally:
            for handle in handles:
                handle.remove()
            for parameter, value in required.items():
                parameter.requires_grad_(value)

    def _collect(
        self, calls: list[tuple[nn.Module, torch.Tensor, torch.Tensor]], size: int, examples_per_unit: int
    ) -> dict[str, list[Use]]:
        """Parameter name -> its uses; repeated uses of one kind are joined along the positions."""
        uses: dict[str, list[Use]] = defaultdict(list)
        for module, x, g in calls:
            if g.shape[0] != size or x.shape[0] != size:
                raise ValueError(
                    f"the input of {type(module).__name__} must have one row per example, got shape {tuple(x.shape)} "
                    f"for {size} examples. Its per-example gradient is unknown; leave the layer untrained."
                )
            own = self._modules[module]
            for weight, use in uses_of(module, list(own), x, g).items():
                uses[own[weight]].append(use.grouped(examples_per_unit))
        return {name: _joined(uses[name]) for name in self.parameters if name in uses}


def _joined(uses: list[Use]) -> list[Use]:
    """The gradient of several calls of one layer is that of one call on the joined positions."""
    kinds: dict[str, Use] = {}
    for use in uses:
        first = kinds.get(use.kind)
        if first is None:
            kinds[use.kind] = use
        else:
            x = None if use.x is None else torch.cat([first.x, use.x], dim=1)
            kinds[use.kind] = replace(first, x=x, g=torch.cat([first.g, use.g], dim=1))
    return list(kinds.values())


def _norm_squared(uses: list[Use], gradients: list[torch.Tensor | None]) -> torch.Tensor:
    """[B] squared norm of one parameter's per-example gradient, with the cross term of a tied weight."""
    total = sum(
        use.ghost_norm_squared() if gradient is None else gradient.flatten(1).square().sum(dim=1)
        for use, gradient in zip(uses, gradients, strict=True)
    )
    if len(uses) == 2:
        by_kind = {use.kind: use for use in uses}
        if set(by_kind) != {"embedding", "linear"}:
            raise ValueError(unsupported(f"a weight shared by layers of kinds {sorted(by_kind)}"))
        total = total + 2 * cross_term(by_kind["embedding"], by_kind["linear"])
    return total


def _clipped_sum(
    use: Use, gradient: torch.Tensor | None, factors: torch.Tensor, finite: torch.Tensor, shape: torch.Size
) -> torch.Tensor:
    """Σ_i factors_i · gradient_i; an example whose gradient is not finite contributes nothing."""
    if not bool(finite.all()):
        keep = finite.view(-1, *[1] * (use.g.dim() - 1))
        use = replace(use, g=torch.where(keep, use.g, 0.0))
        if use.x is not None and use.x.is_floating_point():
            use = replace(use, x=torch.where(keep, use.x, 0.0))
        gradient = (
            None if gradient is None else torch.where(finite.view(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)
        )
    if gradient is not None:
        return (factors @ gradient.flatten(1)).view(shape)
    return use.weighted_sum(factors, shape)
