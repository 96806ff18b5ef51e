"""Base weights in 4 or 8 bits, frozen under an adapter. The kernels are those of bitsandbytes."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import nn

from raydp.models.pretrained import PretrainedModel


def quantise(base: PretrainedModel, device: torch.device | str | None = None) -> None:
    """Put a base model's linear layers, but for the output layer, into 4 or 8 bits, in place.

    This is the service `quantise`. bitsandbytes' layers take gradients through to their inputs, and
    none to their weights. Their matrix products are computed in the model's dtype (nf4) or in
    integers (int8), where the inputs are rounded token by token: an example's loss depends on that
    example alone.

    Args:
        device: where the new layers are; None for where the weights are. A GPU quantises faster
            than a CPU.

    Raises:
        ValueError: bitsandbytes is not installed, or the model has no linear layers.

    Source: Dettmers et al. 2022 (LLM.int8()), Dettmers et al. 2023 (NF4).
    """
    assert base.quantization is not None, "quantise a model that asks for it"
    check_quantisation(base.quantization)
    # The output layer stays whole: its rounding would change every token's loss.
    output = base.model.get_output_embeddings()
    chosen = [
        name
        for name, layer in base.model.named_modules()
        if type(layer) is nn.Linear and layer is not output
    ]
    if not chosen:
        raise ValueError(
            f"model.quantization must be left out for {base.name!r}, got {base.quantization}: its "
            "layers store their weights in another form. Use another base model."
        )
    # Replace layer by layer, so that only one exists in both forms.
    for name in chosen:
        parent, _, own = name.rpartition(".")
        layer = _quantised(base.model.get_submodule(name), base.quantization, device)
        setattr(base.model.get_submodule(parent), own, layer)
    base.model.requires_grad_(False).eval()


def check_quantisation(quantization: str) -> None:
    """Raise ValueError if bitsandbytes is not installed. This is the service of its name."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            f"model.quantization {quantization!r} must have the package bitsandbytes, got none. "
            "Run `pip install '.[quantization]'`, or leave it out."
        )


@cache
def _library() -> Any:
    """Import bitsandbytes."""
    return importlib.import_module("bitsandbytes")


@cache
def _linear_8bit() -> type[nn.Module]:
    """Return bitsandbytes' layer, made to move with what it keeps beside its weights."""
    linear: Any = _library().nn.Linear8bitLt

    class Linear8bit(linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # The layer keeps its rows' scales beside its weights, and `.to` does not move them.
            for holder in (self.weight, self.state):
                if holder.CB is not None and holder.CB.device != x.device:
                    holder.CB, holder.SCB = self.weight.data, holder.SCB.to(x.device)
            output: torch.Tensor = super().forward(x)
            return output

    return Linear8bit


def _quantised(layer: nn.Module, quantization: str, device: torch.device | str | None) -> nn.Module:
    """Return a linear layer with its weights in 4 or 8 bits, on a device or on the layer's own."""
    assert isinstance(layer, nn.Linear)
    weight, sizes, bias = (
        layer.weight,
        (layer.in_features, layer.out_features),
        layer.bias is not None,
    )
    # The layer is built on "meta", so that weights are not allocated twice.
    bnb = _library()
    if quantization == "nf4":
        made = bnb.nn.Linear4bit(
            *sizes, bias=bias, compute_dtype=weight.dtype, quant_type="nf4", device="meta"
        )
        made.weight = bnb.nn.Params4bit(
            weight.data, requires_grad=False, quant_type="nf4", module=made
        )
        # On some processors bitsandbytes packs the weights anew for inference, with rounded scales:
        # the model would change at its first evaluation, and differ between machines.
        made.support_avx512bf16_for_cpu = False
    else:
        made = _linear_8bit()(*sizes, bias=bias, has_fp16_weights=False, device="meta")
        made.weight = bnb.nn.Int8Params(weight.data, requires_grad=False, has_fp16_weights=False)
    if bias:
        made.bias = layer.bias
    moved: nn.Module = made.to(device or weight.device)  # this is where bitsandbytes quantises
    return moved
