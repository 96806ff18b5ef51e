"""The clipped sum of per-example gradients, in one backward pass.

Every trained layer keeps its input; the backward pass of the summed loss gives the gradient of each layer's output,
and from the two come the per-example norms and the sum of the clipped gradients. The weights themselves take no
gradient, so the pass costs what a pass through activations costs, and it stops at the first trained layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import nn

from raydp.training.gradients.layers import Rule, Use, cross_term, joined, rule_of, scales_last_dimension, uses_of
from raydp.training.gradients.thresholds import Clipping
from raydp.training.gradients.vjp import check_supported, only_input, per_example_gradients, unsupported
from raydp.training.gradients.weight_reads import only_by_their_layers
from raydp.training.sharding import is_sharded


@dataclass(kw_only=True)
class _Call:
    """A call of a trained layer: its input x, the version of x's memory, its output where a rule needs it, and the
    gradient of the output; and the type that autocast computed it in, if it did."""

    module: nn.Module
    x: torch.Tensor
    version: int
    output: torch.Tensor | None
    autocast: torch.dtype | None
    g: torch.Tensor


class ClippedGradients:
    """Sums clipped per-example gradients of a model's trained parameters.

    Args:
        model: in eval mode (dropout would couple the guarantee to an unkeyed generator).
        parameters: name -> trained parameter; all others are left alone.
        clipping: what an example's gradient is scaled by, from its norm over all parameters.
        weight_decay: λ >= 0: an example's loss has λ/2 ‖θ‖² of the trained parameters θ added, so that λθ is clipped
            with its gradient (Guo 2024, section 4.1, whose Algorithm 1 adds the scalar itself). A norm counts as λ‖θ‖
            at least, so that a gradient that cancels λθ is no larger in the sum than 2 c.

    Guarantee:
        Adding or removing one unit (an example, or all examples of a user) changes the sum by at most
        clipping.max_grad_norm in the L2 norm over all parameters, up to fp32 rounding, provided that the loss of an
        example depends on that example alone.

    Raises:
        ValueError: a trained parameter belongs to a layer whose per-example gradient is not known; names the layer.
            What can be seen of a layer is seen here, the rest in the first pass. It is also an error if a parameter
            takes no part in the loss of a micro-batch: a gradient of zero could as well be one that was overlooked.
            That includes experts that no token was routed to; layers that see some of the examples have no rule anyway.
    """

    def __init__(
        self, model: nn.Module, parameters: dict[str, nn.Parameter], clipping: Clipping, *, weight_decay: float = 0.0
    ) -> None:
        assert not model.training, "per-example gradients need eval mode"
        self.weight_decay = weight_decay
        self.model = model
        self.parameters = parameters
        self.clipping = clipping
        by_id = {id(p): name for name, p in parameters.items()}
        self._modules: dict[nn.Module, dict[str, str]] = {}  # module -> its own weight name -> parameter name
        self._names: dict[nn.Module, str] = {}
        self._rules: dict[nn.Module, Rule] = {}
        self._unproven: set[nn.Module] = set()  # follow the rule for norms by their name alone
        self._sharded = is_sharded(model)
        assert not (self._sharded and weight_decay), "no worker has all weights at hand; the spec refuses it"
        self._reads_checked = self._sharded  # what gathers a layer's weights reads them, too
        for path, module in model.named_modules():
            own = {n: by_id[id(p)] for n, p in module._parameters.items() if p is not None and id(p) in by_id}
            if own:
                self._modules[module] = own
                self._names[module] = f"{type(module).__name__} {path!r}"
                check_supported(module, self._names[module])
                self._rules[module] = rule_of(module, list(own))
                if self._rules[module] == "norm":
                    self._unproven.add(module)

    def accumulate(
        self,
        loss_fn: Callable[[], torch.Tensor],
        total: MutableMapping[str, torch.Tensor],
        examples_per_unit: int = 1,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Add the clipped gradients of a micro-batch to a running sum.

        Args:
            loss_fn: runs the model and returns the per-example losses [B].
            total: parameter name -> running sum, fp32, changed in place.
            examples_per_unit: m examples in a row are one unit of privacy, of U = B / m; the sum of their gradients is
                clipped (user-level DP-SGD with user-level sampling: McMahan et al. 2018; Charles et al. 2024).
            weights: [U] in [0, 1], what a unit's clipped gradient is multiplied with; it then changes the sum by at
                most so many clipping norms.

        Returns:
            [2, U]: the mean loss of each unit and its gradient's norm before clipping.
        """
        with self._recording() as calls:
            with nullcontext() if self._reads_checked else only_by_their_layers(self._modules, self.parameters):
                losses = loss_fn()
            self._reads_checked = True
            losses.sum().backward()
        with torch.no_grad():
            uses = self._collect(calls, len(losses), examples_per_unit)
            gradients = {name: [u.gradient() for u in used] for name, used in uses.items()}
            squares = torch.stack([_norm_squared(used, gradients[n]) for n, used in uses.items()]).sum(0)
            if decay := self.weight_decay * examples_per_unit:
                squares = self._with_decay(squares, uses, gradients, decay)
            norms = squares.clamp(min=0).sqrt()
            finite = torch.isfinite(norms)
            any_finite = finite.any()
            factors = torch.where(finite, self.clipping.factors(norms), 0.0)
            if weights is not None:
                factors = factors * weights
            for name, used in uses.items():
                for use, gradient in zip(used, gradients[name], strict=True):
                    total[name] += _clipped_sum(use, gradient, factors, finite, self.parameters[name].shape)
                if decay:  # a norm is finite where the weights are; 0 times infinity would tell of an example
                    decayed = decay * factors.sum() * self.parameters[name].float()
                    total[name] += torch.where(any_finite, decayed, 0.0)
            return torch.stack([losses.detach().float().view(-1, examples_per_unit).mean(dim=1), norms])

    def _with_decay(
        self,
        squares: torch.Tensor,
        uses: dict[str, list[Use]],
        gradients: dict[str, list[torch.Tensor | None]],
        decay: float,
    ) -> torch.Tensor:
        """[B] ‖g + λθ‖² = ‖g‖² + 2λ g·θ + λ² ‖θ‖² from ‖g‖². Where the two cancel, rounding could make it too small,
        and an example would be clipped too little: it is taken as large as rounding lets it be. And it is λ² ‖θ‖² at
        least: what cancels would otherwise enter the sum many times larger than c, and be rounded accordingly."""
        unit = 4 * 2.0**-24
        found, least = squares * (1 + unit), torch.zeros((), device=squares.device)
        for name, used in uses.items():
            weight = self.parameters[name].float()
            own = decay**2 * weight.square().sum()
            least += own
            found += own * (1 + unit * weight.numel() ** 0.5)
            for use, gradient in zip(used, gradients[name], strict=True):
                product, error = use.inner(weight, gradient)
                found += 2 * decay * (product + error)
        return torch.maximum(found, least)

    @contextmanager
    def _recording(self) -> Iterator[list[_Call]]:
        """Collect every call of a trained layer whose output the loss depends on."""
        calls: list[_Call] = []

        def forward_hook(
            module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: torch.Tensor
        ) -> torch.Tensor:
            x = only_input(args, kwargs, output, self._names[module]).detach()
            kept = output.detach() if self._rules[module] == "vjp" else None
            if not output.requires_grad:
                output.requires_grad_(True)  # a leaf: the backward pass ends here
            if output.is_leaf or kept is not None:
                output = output.clone()  # which the model may change in place
            device = x.device.type
            autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            call = partial(_Call, module=module, x=x, version=x._version, output=kept, autocast=autocast)
            output.register_hook(lambda g: calls.append(call(g=g.detach())))
            return output

        required = {p: p.requires_grad for p in self.parameters.values()}
        handles = [module.register_forward_hook(forward_hook, with_kwargs=True) for module in self._modules]
        try:
            for parameter in required:
                parameter.requires_grad_(False)
            yield calls
        finally:
            for handle in handles:
                handle.remove()
            for parameter, value in required.items():
                parameter.requires_grad_(value)

    def _collect(self, calls: list[_Call], size: int, examples_per_unit: int) -> dict[str, list[Use]]:
        """Parameter name -> its uses, of every parameter."""
        uses: dict[str, list[Use]] = defaultdict(list)
        for call in calls:
            own, layer = self._modules[call.module], self._names[call.module]
            if call.g.dim() == 0 or call.g.shape[0] != size or call.x.shape[:1] != (size,):
                raise ValueError(unsupported(layer, f"its input {tuple(call.x.shape)} has no row for each example"))
            if call.x._version != call.version:
                raise ValueError(unsupported(layer, "its input is changed in place after it was used"))
            for weight, use in self._uses(call).items():
                uses[own[weight]].append(use.grouped(examples_per_unit))
        idle = sorted(self.parameters.keys() - uses.keys())
        if idle:
            raise ValueError(
                f"model.adapter must train weights that take part in the loss, got {', '.join(idle)}, which took none. "
                "Leave them untrained."
            )
        return {name: joined(uses[name], parameter.shape) for name, parameter in self.parameters.items()}

    def _uses(self, call: _Call) -> dict[str, Use]:
        module, names = call.module, list(self._modules[call.module])
        if module in self._unproven:
            if not scales_last_dimension(module, call.x):
                self._rules[module] = "vjp"
            self._unproven.remove(module)  # only now: out of memory in the trial, it is tried again
        rule = self._rules[module]
        if rule != "vjp":
            return uses_of(module, rule, names, call.x, call.g)
        if self._sharded:
            raise ValueError(unsupported(self._names[module], "its weights are spread over workers"))
        with torch.autocast(call.x.device.type, dtype=call.autocast, enabled=call.autocast is not None):
            output = module(call.x) if call.output is None else call.output
            gradients = per_example_gradients(module, names, call.x, output, call.g, layer=self._names[module])
        return {name: Use(kind="materialised", x=None, g=gradient) for name, gradient in gradients.items()}


def _norm_squared(uses: list[Use], gradients: list[torch.Tensor | None]) -> torch.Tensor:
    """[B] squared norm of one parameter's per-example gradient, with the cross term of a tied weight."""
    squares = (
        use.norm_squared() if gradient is None else gradient.flatten(1).square().sum(dim=1)
        for use, gradient in zip(uses, gradients, strict=True)
    )
    total = cast(torch.Tensor, sum(squares))  # of one use at least
    if len(uses) == 2:
        by_kind = {use.kind: use for use in uses}
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
