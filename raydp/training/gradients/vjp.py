"""Per-example gradients of a layer without its own rule: it is differentiated again by example."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import nn
from torch.func import functional_call, vjp

from raydp.training.gradients.layers import close_by_example
from raydp.training.gradients.memory import is_out_of_memory

PullBack = Callable[[torch.Tensor], tuple[dict[str, torch.Tensor]]]
"""Function from the gradient of an output to the gradients of the weights, by name."""


def per_example_gradients(
    module: nn.Module,
    names: Sequence[str],
    x: torch.Tensor,
    output: torch.Tensor,
    g: torch.Tensor,
    *,
    layer: str,
) -> dict[str, torch.Tensor]:
    """Return per-example gradients of a layer's own weights, from one call of the layer.

    Args:
        names: the layer's own weights that are trained.
        x: its input, [B, ...].
        output: its output, [B, ...].
        g: gradient of the summed loss by the output.
        layer: the layer's name in errors.

    Returns:
        name -> [B, *weight], fp32: B times the memory of the weight.

    Guarantee:
        The layer is computed on each example alone, so a gradient depends on its own example only.
        If the output of an example in the batch differs from its output alone, there is an error
        and no gradient.

    Raises:
        ValueError: the layer cannot be computed on one example alone, or gives another result
            alone.
    """
    weights = {name: cast(nn.Parameter, module._parameters[name]).detach() for name in names}

    # Functional calls on detached weights: no gradient reaches the parameters themselves.
    def one(x_i: torch.Tensor, g_i: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        def call(own: dict[str, torch.Tensor]) -> torch.Tensor:
            result: torch.Tensor = functional_call(module, own, (x_i[None],))[0]
            return result

        alone, pull_back = cast("tuple[torch.Tensor, PullBack]", vjp(call, weights))
        return alone, pull_back(g_i.to(alone.dtype))[0]

    try:
        alone, gradients = torch.vmap(one)(x, g)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(
            unsupported(layer, f"it cannot be computed for one example alone ({error})")
        ) from error
    # A layer that mixes examples gives another output for one alone, and clipping would not bound
    # it.
    if not bool(close_by_example(alone, output).all()):
        raise ValueError(
            unsupported(layer, "its result for an example alone is not that in a batch")
        )
    return {name: gradient.float() for name, gradient in gradients.items()}


def check_supported(module: nn.Module, layer: str) -> None:
    """Raise ValueError, before any step, for a layer that surely has no per-example gradient."""
    if isinstance(module, nn.RNNBase):
        raise ValueError(unsupported(layer, "it returns several tensors"))
    # Batch norm with the batch's own statistics mixes examples; with fixed ones it does not.
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
        module.training or module.running_mean is None
    ):
        raise ValueError(unsupported(layer, "it mixes the examples of a batch"))
    if isinstance(module, nn.Embedding) and (
        module.max_norm is not None or module.scale_grad_by_freq
    ):
        raise ValueError(
            unsupported(layer, "max_norm and scale_grad_by_freq go beyond a single example")
        )
    # Only one input: the rows of a second one need not be the examples.
    required = [
        p.name
        for p in inspect.signature(module.forward).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(required) != 1:
        raise ValueError(unsupported(layer, f"it takes {len(required)} inputs"))


def only_input(
    args: tuple[object, ...], kwargs: dict[str, object], output: object, layer: str
) -> torch.Tensor:
    """Return the single tensor that a layer was called with.

    Raises:
        ValueError: there were other inputs, or the output is not one tensor.
    """
    given = [value for value in (*args, *kwargs.values()) if value is not None]
    if len(given) != 1 or not isinstance(given[0], torch.Tensor):
        raise ValueError(unsupported(layer, f"it was called with {len(given)} inputs"))
    if not isinstance(output, torch.Tensor):
        raise ValueError(unsupported(layer, f"it returned a {type(output).__name__}"))
    return given[0]


def unsupported(layer: str, reason: str) -> str:
    """Return the error message for a layer without a per-example gradient."""
    return (
        f"model.adapter must train layers whose per-example gradients are known, got {layer}: "
        f"{reason}. Known are layers from one tensor to one tensor, examples first, that treat "
        "each example by itself. Leave it untrained."
    )
