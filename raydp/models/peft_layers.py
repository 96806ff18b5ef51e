"""Layers of adapters that compute what peft's own do, in a form whose per-example gradients are known or cheaper.

They have peft's parameters under peft's names. peft saves and loads them as its own.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners import ia3, lora
from torch import nn

from raydp.models.vector_layers import ExampleDropout, Scaling


class NarrowLinear(lora.Linear):
    """peft's LoRA layer, scaled where it is narrow: W x + B (s A x) in place of W x + s (B A x).

    The product A x has r columns, B A x has as many as W x. With s = 1, nothing is scaled at all. The values are those
    of peft's layer but for rounding, and the same bits where s is a power of two.
    """

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        plain = not (args or kwargs or self.disable_adapters or self.merged or self.lora_variant)
        if not plain or len(self.active_adapters) != 1:
            result: torch.Tensor = super().forward(x, *args, **kwargs)
            return result
        (name,) = self.active_adapters
        down, up, scaling = self.lora_A[name], self.lora_B[name], self.scaling[name]
        assert isinstance(down, nn.Linear)
        narrow = down(self.lora_dropout[name](self._cast_input_dtype(x, down.weight.dtype)))
        wide: torch.Tensor = self.base_layer(x)
        sum_: torch.Tensor = wide + up(narrow if scaling == 1 else narrow * scaling)
        return sum_.to(wide.dtype)


class ScaledLinear(ia3.Linear):
    """peft's IA3 layer, with the product by its vector as a layer of its own (`Scaling`)."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        plain = not (args or kwargs or self.disable_adapters or self.merged) and len(self.active_adapters) == 1
        if not plain:
            result: torch.Tensor = super().forward(x, *args, **kwargs)
            return result
        if self.is_feedforward:
            inputs = self.ia3_l(x).to(x.dtype)
            return self.base_layer(inputs)  # type: ignore[no-any-return]  # peft does not type its base layer
        outputs: torch.Tensor = self.base_layer(x)
        scaled: torch.Tensor = self.ia3_l(outputs)
        return scaled.to(outputs.dtype)


def with_own_layers(model: nn.Module) -> None:
    """Let a new peft model compute with the layers of this module, in place.

    peft takes another class for LoRA's linear layers (`_register_custom_module`), but none for IA3's. So these change
    their class here; they keep their parameters.
    """
    for path, module in model.named_modules():
        if type(module) is ia3.Linear:
            module.__class__ = ScaledLinear
            module.ia3_l.__class__ = Scaling
        elif isinstance(module, lora.Linear):
            for name, dropout in module.lora_dropout.items():
                if isinstance(dropout, nn.Dropout):
                    module.lora_dropout[name] = ExampleDropout(dropout.p, layer=path)
