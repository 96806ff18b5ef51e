"""Layers that compute what peft's do, in a form with cheaper per-example gradients.

They have peft's parameters under peft's names. peft saves and loads them as its own.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from peft.tuners import ia3, lora
from peft.tuners.lora.dora import DoraLinearLayer
from torch import nn

from raydp.models.vector_layers import ExampleDropout, Scaling, VectorProduct


class Magnitude(VectorProduct, DoraLinearLayer):
    """The magnitudes m of a DoRA layer, as a layer: x ∘ m."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # peft's takes the whole LoRA layer
        product: torch.Tensor = x * self.weight
        return product


class NarrowLinear(lora.Linear):
    """peft's LoRA layer, scaled where it is narrow: W x + B (s A x) in place of W x + s (B A x).

    The product A x has r columns, B A x has as many as W x. With s = 1, nothing is scaled at all.
    The values are those of peft's layer but for rounding, and the same bits where s is a power of
    two.

    With DoRA (Liu et al. 2024) it is m ∘ (W x + B (s A x)) / ‖W + s B A‖, where the norm of each
    row counts as a constant in the gradient (their section 4.3).
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Everything unusual (merged, disabled, several adapters) is left to peft.
        plain = not (args or kwargs or self.disable_adapters or self.merged)
        if not plain or len(self.active_adapters) != 1:
            result: torch.Tensor = super().forward(x, *args, **kwargs)
            return result
        (name,) = self.active_adapters
        down, up, scaling = self.lora_A[name], self.lora_B[name], self.scaling[name]
        assert isinstance(down, nn.Linear)
        inputs = (
            x
            if torch.is_autocast_enabled(x.device.type)
            else self._cast_input_dtype(x, down.weight.dtype)
        )
        # Scale A x, which has r columns, and not B A x: s B A x = B (s A x).
        narrow = down(self.lora_dropout[name](inputs))
        update: torch.Tensor = up(narrow if scaling == 1 else narrow * scaling)
        wide: torch.Tensor = self.base_layer(x)
        if name not in self.lora_magnitude_vector:
            return (wide + update).to(wide.dtype)
        # DoRA normalises the product without the bias, which is added afterwards.
        bias = 0.0 if self.base_layer.bias is None else cast("torch.Tensor", self.base_layer.bias)
        direction = (wide - bias + update) / self.row_norms(name)
        scaled: torch.Tensor = self.lora_magnitude_vector[name](direction)
        return (scaled + bias).to(wide.dtype)

    @torch.no_grad()
    def row_norms(self, name: str) -> torch.Tensor:
        """Return [out] ‖W + s B A‖ of each row, without a matrix of the size of W."""
        layers = (self.base_layer, self.lora_A[name], self.lora_B[name])
        base, down, up = (cast("torch.Tensor", layer.weight) for layer in layers)
        base, scale = base.to(down.dtype), self.scaling[name]
        # ‖W + s B A‖² = ‖W‖² + 2 s <W, B A> + s² ‖B A‖², row by row. W Aᵀ is only as wide as the
        # rank. autocast would round the products to bf16.
        with torch.autocast(base.device.type, enabled=False):
            cross = ((base @ down.T) * up).sum(dim=1)
            own = ((up @ (down @ down.T)) * up).sum(dim=1)
        squares: torch.Tensor = base.square().sum(dim=1) + 2 * scale * cross + scale**2 * own
        # Rounding may leave a tiny negative number.
        return squares.clamp(min=0).sqrt()


class ScaledLinear(ia3.Linear):
    """peft's IA3 layer, with the product by its vector as a layer of its own (`Scaling`)."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        plain = (
            not (args or kwargs or self.disable_adapters or self.merged)
            and len(self.active_adapters) == 1
        )
        if not plain:
            result: torch.Tensor = super().forward(x, *args, **kwargs)
            return result
        # A feed-forward layer scales its inputs, any other its outputs (Liu et al. 2022, IA3).
        if self.is_feedforward:
            inputs = self.ia3_l(x).to(x.dtype)
            return self.base_layer(inputs)  # type: ignore[no-any-return]  # peft does not type its base layer
        outputs: torch.Tensor = self.base_layer(x)
        scaled: torch.Tensor = self.ia3_l(outputs)
        return scaled.to(outputs.dtype)


def with_own_layers(model: nn.Module) -> None:
    """Let a new peft model compute with the layers of this module, in place.

    peft takes another class for LoRA's linear layers (`_register_custom_module`), but none for
    IA3's. So these change their class here; they keep their parameters.
    """
    for path, module in model.named_modules():
        # peft has no hook for another class here, so the class of the object is exchanged.
        if type(module) is ia3.Linear:
            module.__class__ = ScaledLinear
            module.ia3_l.__class__ = Scaling
        elif isinstance(module, lora.Linear):
            # DoRA's magnitudes start as the row norms, so that training starts at the base model.
            for magnitude in module.lora_magnitude_vector.values():
                if type(module) is not NarrowLinear:
                    kind = type(module.get_base_layer()).__name__
                    raise ValueError(
                        f"use_dora must be false for layers of type {kind}, got true. Leave it out."
                    )
                magnitude.__class__ = Magnitude
                if magnitude.weight.device.type != "meta":  # peft's are rounded to the base's type
                    magnitude.weight.data = module.row_norms(module.active_adapters[0])
            # torch's dropout draws for the whole batch: one example's mask would depend on the
            # others.
            for name, dropout in list(module.lora_dropout.items()):
                if isinstance(dropout, nn.Dropout):
                    module.lora_dropout[name] = ExampleDropout(dropout.p, layer=path)
