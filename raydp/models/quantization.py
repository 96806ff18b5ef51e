"""Base weights in 4 or 8 bits, frozen under an adapter. The kernels are those of bitsandbytes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from raydp.models.pretrained import PretrainedModel


def check_quantization(quantization: str | None) -> None:
    """Raise ValueError if a quantisation is asked for and bitsandbytes is not installed."""
    if quantization is not None and importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError(
            f"model.quantization {quantization!r} must have the package bitsandbytes, got none. Run "
            "`pip install '.[quantization]'`, or leave it out."
        )


def quantise(base: PretrainedModel, device: torch.device | str | None = None) -> None:
    """Replace the linear layers of a base model, but for the output layer, by layers in 4 or 8 bits, in place.

    It does nothing for a model without `quantization`. bitsandbytes' layers take gradients through to their inputs, and
    none to their weights. Their matrix products are computed in the model's dtype (nf4) or in integers (int8), where
    the inputs are rounded token by token: an example's loss depends on that example alone.

    Args:
        device: where the new layers are; None for where the weights are. A GPU quantises faster than a CPU.

    Raises:
        ValueError: bitsandbytes is not installed, or the model has no linear layers.

    Source: Dettmers et al. 2022 (LLM.int8()), Dettmers et al. 2023 (NF4).
    """
    if base.quantization is None:
        return
    check_quantization(base.quantization)
    output = base.model.get_output_embeddings()
    chosen = [name for name, layer in base.model.named_modules() if type(layer) is nn.Linear and layer is not output]
    if not chosen:
        raise ValueError(
            f"model.quantization must be left out for {base.name!r}, got {base.quantization}: its layers store their "
            "weights in another form. Use another base model."
        )
    for name in chosen:
        parent, _, own = name.rpartition(".")
        layer = _quantised(base.model.get_submodule(name), base.quantization, device)
        setattr(base.model.get_submodule(parent), own, layer)
    base.model.requires_grad_(False).eval()


@contextmanager
def without_bitsandbytes() -> Iterator[None]:
    """Keep peft from importing bitsandbytes, while it attaches an adapter to a model that is not quantised.

    Where bitsandbytes is installed, peft imports it for every model, and with it torch's compiler. This costs each
    process more than a second of processor time. peft remembers whether bitsandbytes is installed, and must ask again
    afterwards.
    """
    if "bitsandbytes" in sys.modules:
        yield
        return
    sys.modules["bitsandbytes"] = None  # type: ignore[assignment] # Python's own mark of a module that is not to be found
    try:
        yield
    finally:
        del sys.modules["bitsandbytes"]
        from peft.import_utils import is_bnb_4bit_available, is_bnb_available

        is_bnb_available.cache_clear()
        is_bnb_4bit_available.cache_clear()


@cache
def _library() -> Any:
    """Import bitsandbytes."""
    return importlib.import_module("bitsandbytes")


@cache
def _linear_8bit() -> type[nn.Module]:
    """Return bitsandbytes' layer, which can also be moved to another device.

    Moving its module moves the weights only, not what the layer keeps beside them.
    """
    linear: Any = _library().nn.Linear8bitLt

    class Linear8bit(linear):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for holder in (self.weight, self.state):
                if holder.CB is not None and holder.CB.device != x.device:
                    holder.CB, holder.SCB = self.weight.data, holder.SCB.to(x.device)
            output: torch.Tensor = super().forward(x)
            return output

    return Linear8bit


def _quantised(layer: nn.Module, quantization: str, device: torch.device | str | None) -> nn.Module:
    """Return a linear layer with its weights in 4 or 8 bits, on a device or on the layer's own."""
    assert isinstance(layer, nn.Linear)
    weight, sizes, bias = layer.weight, (layer.in_features, layer.out_features), layer.bias is not None
    bnb = _library()
    if quantization == "nf4":
        made = bnb.nn.Linear4bit(*sizes, bias=bias, compute_dtype=weight.dtype, quant_type="nf4", device="meta")
        made.weight = bnb.nn.Params4bit(weight.data, requires_grad=False, quant_type="nf4", module=made)
        # On some processors bitsandbytes packs the weights anew for inference, with rounded scales: the model would
        # change at its first evaluation, and differ between machines.
        made.support_avx512bf16_for_cpu = False
    else:
        made = _linear_8bit()(*sizes, bias=bias, has_fp16_weights=False, device="meta")
        made.weight = bnb.nn.Int8Params(weight.data, requires_grad=False, has_fp16_weights=False)
    if bias:
        made.bias = layer.bias
    moved: nn.Module = made.to(device or weight.device)  # this is where bitsandbytes quantises
    return moved
