"""The clipped sum of per-example gradients, in one backward pass.

Every trained layer keeps its input. The backward pass of the summed loss gives the gradient of each
layer's output. Input and output gradient together give the per-example norms and the sum of the
clipped gradients. The weights themselves take no gradient. So the pass costs as much as a pass
through activations, and stops at the first trained layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import nn

from raydp.training.gradients.layers import (
    Rule,
    Use,
    cross_term,
    joined,
    norm_rule,
    rule_of,
    uses_of,
)
from raydp.training.gradients.memory import recomputes_layers
from raydp.training.gradients.thresholds import Clipping
from raydp.training.gradients.vjp import (
    check_supported,
    only_input,
    per_example_gradients,
    unsupported,
)
from raydp.training.gradients.weight_reads import only_by_their_layers
from raydp.training.sharding import is_sharded

_OUTPUT_UNSAVED = ("linear", "conv1d", "embedding")
"""Rules of layers whose backward pass does not read their output."""
SIDE_BY_SIDE = {"cuda"}
"""Types of devices on which small gradients are put side by side."""
GROUP_BYTES = 1 << 30
"""Largest size of gradients that are put side by side."""


@dataclass(kw_only=True)
class _Call:
    """One call of a trained layer.

    Attributes:
        module: the layer.
        x: its input.
        version: the version counter of x's memory at the call.
        output: its output; only if the rule needs it.
        autocast: the dtype of autocast; None without autocast.
        g: the gradient of the output.
        uses: the uses of the layer's own weights, if they are known already; x and g then have a
            shape only.
    """

    module: nn.Module
    x: torch.Tensor
    version: int
    output: torch.Tensor | None
    autocast: torch.dtype | None
    g: torch.Tensor
    uses: dict[str, Use] | None = None


class _HandOver(torch.autograd.Function):
    """The identity of a layer's output. Its backward pass hands over input and output gradient.

    Autograd keeps the input. So a layer that is recomputed need not keep it until the backward
    pass.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        output: torch.Tensor,
        x: torch.Tensor,
        receive: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.receive = receive
        return _no_view(output)

    @staticmethod
    def backward(ctx, g: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[no-untyped-def]
        ctx.receive(*ctx.saved_tensors, g)
        return g, None, None


class ClippedGradients:
    """Sums clipped per-example gradients of a model's trained parameters.

    Args:
        model: in eval mode, because dropout would make the guarantee depend on a generator without
            key.
        parameters: name -> trained parameter; all others are left unchanged.
        clipping: gives the factor of an example's gradient from its norm over all parameters.
        weight_decay: λ >= 0. Each example's loss gets the term λ/2 ‖θ‖² of the trained parameters
            θ, so that λθ is clipped together with the gradient (Guo 2024, section 4.1, whose
            Algorithm 1 adds the scalar itself). A norm counts as at least λ‖θ‖, so that a gradient
            that cancels λθ contributes at most 2 c to the sum.

    Guarantee:
        Adding or removing one unit (an example, or all examples of a user) changes the sum by at
        most clipping.max_grad_norm in the L2 norm over all parameters, up to fp32 rounding. This
        assumes that the loss of an example depends on that example alone.

    Raises:
        ValueError: a trained parameter belongs to a layer whose per-example gradient is not known;
            the message names the layer. Some layers are rejected here, the others in the first
            pass. It is also an error if a parameter takes no part in the loss of a micro-batch,
            because its gradient may have been overlooked. This includes experts that no token was
            routed to; layers that see only some of the examples have no rule anyway.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        clipping: Clipping,
        *,
        weight_decay: float = 0.0,
    ) -> None:
        assert not model.training, "per-example gradients need eval mode"
        self.weight_decay = weight_decay
        self.model = model
        self.parameters = parameters
        self.clipping = clipping
        by_id = {id(p): name for name, p in parameters.items()}
        self._modules: dict[
            nn.Module, dict[str, str]
        ] = {}  # module -> its own weight name -> parameter name
        self._names: dict[nn.Module, str] = {}
        self._rules: dict[nn.Module, Rule] = {}
        # Modules with the rule for norms because of their class's name. It is not tested yet.
        self._unproven: set[nn.Module] = set()
        self._sharded = is_sharded(model)
        self._recomputes = recomputes_layers(model)
        assert not (self._sharded and weight_decay), (
            "no worker has all weights; the spec refuses it"
        )
        # Gathering a sharded layer's weights would count as a read outside it.
        self._reads_checked = self._sharded
        # Parameter -> paths of the modules that count it.
        owners: dict[str, list[str]] = defaultdict(list)
        # Find each trained parameter's layer, and the layer's rule.
        for path, module in model.named_modules():
            own: dict[str, str] = {}
            for attribute, parameter in module._parameters.items():
                name = by_id.get(id(parameter))
                # A parameter of nested modules counts once: the outer module's gradient includes
                # the inner one's.
                if name is not None and not any(_is_within(path, outer) for outer in owners[name]):
                    owners[name].append(path)
                    own[attribute] = name
            if own:
                self._modules[module] = own
                self._names[module] = f"{type(module).__name__} {path!r}"
                check_supported(module, self._names[module])
                self._rules[module] = rule_of(module, list(own))
                if self._rules[module] == "norm":
                    self._unproven.add(module)

        # A weight of two layers, such as an embedding that is also the output layer.
        counts = Counter(name for own in self._modules.values() for name in own.values())
        self._tied = {name for name, count in counts.items() if count > 1}

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
            examples_per_unit: m. Each m successive examples are one unit of privacy, of U = B / m
                units. The sum of their gradients is clipped (user-level DP-SGD with user-level
                sampling: McMahan et al. 2018; Charles et al. 2024).
            weights: [U] in [0, 1], the factor of each unit's clipped gradient. It scales the
                largest change of the sum by one unit, in clipping norms.

        Returns:
            [2, U]: the mean loss of each unit, and the norm of its gradient before clipping.
        """
        losses, calls = self._backward(loss_fn)
        with torch.no_grad():
            # Squared norms over all parameters, with weight decay.
            uses = self._collect(calls, len(losses), examples_per_unit)
            gradients = {name: [u.gradient() for u in used] for name, used in uses.items()}
            decay = self.weight_decay * examples_per_unit
            grouped = losses.device.type in SIDE_BY_SIDE and isinstance(total, dict) and not decay
            # Sharded sums need one order on all ranks.
            groups = _Rows.taken_from(gradients) if grouped else []
            each = [_norm_squared(uses[name], own) for name, own in gradients.items()]
            each += [_squares_of_rows(group.rows) for group in groups]
            squares = torch.stack(each).sum(0)
            if decay:
                squares = self._with_decay(squares, uses, gradients, decay)
            # Clipping factors. A unit whose gradient is not finite gets factor 0.
            norms = squares.clamp(min=0).sqrt()
            finite = torch.isfinite(norms)
            any_finite = finite.any()
            factors = torch.where(finite, self.clipping.factors(norms), 0.0)
            if weights is not None:
                factors = factors * weights
            # Add the clipped sum, and the clipped weight decay. On a GPU the mask is always
            # applied, because the check would have to wait for the GPU.
            keep = None if not finite.is_cuda and bool(finite.all()) else finite
            for group in groups:
                group.add_clipped(total, factors, keep)
            for name, own in gradients.items():
                for use, gradient in zip(uses[name], own, strict=True):
                    sums = total[name]
                    _add_clipped(sums, use, gradient, factors, keep)
                    total[name] = sums  # a sharded sum is sent to its holders here
                # Finite norms need finite weights; 0 times infinity would reveal an example.
                if decay:
                    decayed = decay * factors.sum() * self.parameters[name].float()
                    total[name] += torch.where(any_finite, decayed, 0.0)
            return torch.stack(
                [losses.detach().float().view(-1, examples_per_unit).mean(dim=1), norms]
            )

    def _backward(self, loss_fn: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, list[_Call]]:
        """Run the forward and the backward pass. Return the losses, and the layers' calls."""
        with self._recording() as calls:
            checked = only_by_their_layers(self._modules, self.parameters)
            with nullcontext() if self._reads_checked else checked:
                losses = loss_fn()
            self._reads_checked = True
            losses.sum().backward()
        return losses, calls

    def _with_decay(
        self,
        squares: torch.Tensor,
        uses: dict[str, list[Use]],
        gradients: dict[str, list[torch.Tensor | None]],
        decay: float,
    ) -> torch.Tensor:
        """Return [B] ‖g + λθ‖² = ‖g‖² + 2λ g·θ + λ² ‖θ‖² from ‖g‖².

        If the terms cancel, rounding could make the norm too small, and the example would be
        clipped too little. So the result includes the largest possible rounding error. It is at
        least λ² ‖θ‖². Otherwise a gradient that cancels λθ would enter the sum many times larger
        than c, with correspondingly large rounding.
        """
        # Four units in the last place of fp32, as in `Use.inner`.
        unit = 4 * 2.0**-24
        bound, least = squares * (1 + unit), torch.zeros((), device=squares.device)
        # λ² ‖θ‖², and then 2λ g·θ, each with the largest error that rounding can make.
        for name, used in uses.items():
            weight = self.parameters[name].float()
            own = decay**2 * weight.square().sum()
            least += own
            bound += own * (1 + unit * weight.numel() ** 0.5)
            for use, gradient in zip(used, gradients[name], strict=True):
                product, error = use.inner(weight, gradient)
                bound += 2 * decay * (product + error)
        return torch.maximum(bound, least)

    @contextmanager
    def _recording(self) -> Iterator[list[_Call]]:
        """Record every call of a trained layer whose output the loss depends on."""
        calls: list[_Call] = []

        def forward_hook(
            module: nn.Module,
            args: tuple[object, ...],
            kwargs: dict[str, object],
            output: torch.Tensor,
        ) -> torch.Tensor:
            if not torch.is_grad_enabled():
                # the loss does not depend on this call, as of an index of sparse attention
                return output
            # Make the output a node of the graph that the model cannot change in place.
            x = only_input(args, kwargs, output, self._names[module]).detach()
            kept = output.detach() if self._rules[module] == "vjp" else None
            if not output.requires_grad:
                output.requires_grad_(True)  # makes it a leaf, where the backward pass ends
            plain = self._rules[module] in _OUTPUT_UNSAVED
            if (
                output.is_leaf
                or kept is not None
                or (not plain and (output._is_view() or self._recomputes))
            ):
                output = output.clone()  # the model may change the output in place
            elif output._is_view():
                output = _no_view(output)
            # Record the call once the backward pass knows the gradient of its output.
            device = x.device.type
            autocast = (
                torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
            )
            call = partial(_Call, module=module, version=x._version, output=kept, autocast=autocast)
            if self._recomputes:

                def receive(x: torch.Tensor, g: torch.Tensor) -> None:
                    calls.append(self._written_out(call(x=x, g=g)))

                handed: torch.Tensor = _HandOver.apply(output, x, receive)  # type: ignore[no-untyped-call]
                return handed
            output.register_hook(lambda g: calls.append(call(x=x, g=g.detach())))
            return output

        # The weights themselves need no gradient during the block.
        required = {p: p.requires_grad for p in self.parameters.values()}
        handles = [
            module.register_forward_hook(forward_hook, with_kwargs=True) for module in self._modules
        ]
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
        self, calls: list[_Call], size: int, examples_per_unit: int
    ) -> dict[str, list[Use]]:
        """Return the uses of every parameter by name; ValueError if a call is not supported."""
        uses: dict[str, list[Use]] = defaultdict(list)
        # Refuse a call whose rows are not the examples: its gradients could not be told apart.
        for call in calls:
            own, layer = self._modules[call.module], self._names[call.module]
            refusal = _refusal(call, size)
            if refusal is not None:
                raise ValueError(unsupported(layer, refusal))
            for weight, use in self._uses(call).items():
                uses[own[weight]].append(use.grouped(examples_per_unit))
        # A gradient that is overlooked would be neither clipped nor noised.
        idle = sorted(self.parameters.keys() - uses.keys())
        if idle:
            raise ValueError(
                "model.adapter must train weights that take part in the loss, got "
                f"{', '.join(idle)}, which took no part. Leave them untrained."
            )
        return {
            name: joined(uses[name], parameter.shape) for name, parameter in self.parameters.items()
        }

    def _written_out(self, call: _Call) -> _Call:
        """Return a call with its weights' gradients written out, if that is cheap.

        Its input and its output's gradient are then dropped.

        An output layer that is tied to an embedding is left as it is: the gradient of the embedding
        would be written out with its own, and on some ranks only.
        """
        known = (
            self._rules[call.module] in ("linear", "conv1d")
            and _refusal(call, call.x.shape[0]) is None
        )
        if not known or self._tied & set(self._modules[call.module].values()):
            return call
        gradients = {weight: use.gradient() for weight, use in self._uses(call).items()}
        uses = {
            weight: Use(kind="materialised", x=None, g=g)
            for weight, g in gradients.items()
            if g is not None
        }
        if len(uses) < len(gradients):
            return call
        return replace(call, x=call.x.to("meta"), version=0, g=call.g.to("meta"), uses=uses)

    def _uses(self, call: _Call) -> dict[str, Use]:
        """Return the uses of a layer's own weights in one call."""
        if call.uses is not None:
            return call.uses
        module, names = call.module, list(self._modules[call.module])
        if module in self._unproven:
            self._rules[module] = norm_rule(module, call.x)
            # Removed after the test: if the test runs out of memory, it is repeated.
            self._unproven.remove(module)
        rule = self._rules[module]
        if rule != "vjp":
            return uses_of(module, rule, names, call.x, call.g)
        # A sharded layer's whole weights are on no rank, so it cannot be differentiated again.
        if self._sharded:
            raise ValueError(
                unsupported(self._names[module], "its weights are spread over workers")
            )
        with torch.autocast(
            call.x.device.type, dtype=call.autocast, enabled=call.autocast is not None
        ):
            output = module(call.x) if call.output is None else call.output
            gradients = per_example_gradients(
                module, names, call.x, output, call.g, layer=self._names[module]
            )
        return {
            name: Use(kind="materialised", x=None, g=gradient)
            for name, gradient in gradients.items()
        }


def _is_within(path: str, outer: str) -> bool:
    """Return whether the module at a path is the outer one or inside it."""
    return not outer or f"{path}.".startswith(f"{outer}.")


def _no_view(output: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same memory that autograd does not take for a view.

    If the model changes a view in place, autograd moves it to another place of the graph and
    forgets its hook. What made the output must not have saved it for the backward pass.
    """
    result: torch.Tensor = torch.ops.aten._unsafe_view(output, output.shape)
    return result


def _refusal(call: _Call, size: int) -> str | None:
    """Return why the call of a layer with a batch of this size is not supported; None if it is."""
    if call.g.dim() == 0 or call.g.shape[0] != size or call.x.shape[:1] != (size,):
        return f"its input {tuple(call.x.shape)} has no row for each example"
    if call.x._version != call.version:
        return "its input is changed in place after it was used"
    return None


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Written-out gradients of several parameters side by side, for one operation on all of them.

    A GPU takes longer to be asked for an operation on one small parameter than to do it.

    Attributes:
        sizes: name of a parameter -> number of its coordinates, in the order of the columns.
        rows: [B, D] one row an example.
    """

    sizes: dict[str, int]
    rows: torch.Tensor

    @classmethod
    def taken_from(cls, gradients: dict[str, list[torch.Tensor | None]]) -> list[_Rows]:
        """Take the parameters with one written-out gradient out of `gradients`, in groups."""
        # Next fit: a group has at most `GROUP_BYTES`.
        groups: list[list[tuple[str, torch.Tensor]]] = []
        room = 0
        for name, own in list(gradients.items()):
            if len(own) == 1 and own[0] is not None and own[0].nbytes <= GROUP_BYTES // 2:
                if not groups or own[0].nbytes > room:
                    groups.append([])
                    room = GROUP_BYTES
                groups[-1].append((name, own[0]))
                room -= own[0].nbytes
                del gradients[name]
        joined_groups = []
        for group in groups:
            sizes = {name: gradient[0].numel() for name, gradient in group}
            rows = torch.cat([gradient.flatten(1).float() for _, gradient in group], dim=1)
            joined_groups.append(cls(sizes=sizes, rows=rows))
            group.clear()  # its gradients are not needed twice
        return joined_groups

    def add_clipped(
        self,
        total: MutableMapping[str, torch.Tensor],
        factors: torch.Tensor,
        finite: torch.Tensor | None,
    ) -> None:
        """Add Σ_i factors_i · gradient_i to the sums; see `_add_clipped`."""
        rows = self.rows if finite is None else torch.where(finite[:, None], self.rows, 0.0)
        pieces = (factors @ rows).split(list(self.sizes.values()))
        sums = [total[name] for name in self.sizes]
        torch._foreach_add_(
            sums, [piece.view_as(own) for piece, own in zip(pieces, sums, strict=True)]
        )


def _norm_squared(uses: list[Use], gradients: list[torch.Tensor | None]) -> torch.Tensor:
    """Return [B] the squared norm of one parameter's gradient, with a tied weight's cross term."""
    squares = (
        use.norm_squared() if gradient is None else _squares_of_rows(gradient.flatten(1))
        for use, gradient in zip(uses, gradients, strict=True)
    )
    # A sum of squares counts both uses; the square of the sum also needs twice their product.
    total = cast(torch.Tensor, sum(squares))  # there is at least one use
    if len(uses) == 2:
        by_kind = {use.kind: use for use in uses}
        total = total + 2 * cross_term(by_kind["embedding"], by_kind["linear"])
    return total


def _squares_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return [B] the sum of squares of each row. On a GPU no squares are written to memory."""
    if rows.is_cuda:
        norms: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
        return norms.square()
    return rows.square().sum(dim=1)


def _add_clipped(
    sums: torch.Tensor,
    use: Use,
    gradient: torch.Tensor | None,
    factors: torch.Tensor,
    finite: torch.Tensor | None,
) -> None:
    """Add Σ_i factors_i · gradient_i, in place.

    An example whose gradient is not finite contributes nothing.

    Args:
        finite: [B] whether the gradient of an example is finite; None if all are.
    """
    # The narrow kernels skip examples of factor 0 themselves.
    if gradient is None and use.is_narrow():
        use.add_weighted_sum(sums, factors)  # leaves out every example whose factor is 0
        return
    # 0 times infinity is NaN, so the values of an example without a finite gradient are set to 0.
    if finite is not None and gradient is not None:
        gradient = torch.where(finite.view(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)
    elif finite is not None:
        keep = finite.view(-1, *[1] * (use.g.dim() - 1))
        use = replace(use, g=torch.where(keep, use.g, 0.0))
        if use.x is not None and use.x.is_floating_point():
            use = replace(use, x=torch.where(keep, use.x, 0.0))
    if gradient is not None:
        sums += (factors @ gradient.flatten(1)).view(sums.shape)
    else:
        use.add_weighted_sum(sums, factors)
