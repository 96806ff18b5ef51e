"""A LoRA layer that does less than peft's."""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import nn


class NarrowLinear(Linear):
    """peft's LoRA layer, scaled where it is narrow: W x + B (s A x) in place of W x + s (B A x).

    The product A x has r columns, B A x has as many as W x. With s = 1, nothing is scaled at all. The values are those
    of peft's layer but for rounding, and the same bits where s is a power of two. peft saves and loads it as its own.
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
