"""A language model with layers that the engine has no rule for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class CausalConvolution(nn.Module):
    """A convolution over the last three tokens, each channel by itself, as in state space models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel_size=3, groups=width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, T, H] -> [B, T, H]."""
        return self.convolution(F.pad(hidden.mT, (2, 0))).mT


def with_odd_layers(model: nn.Module) -> nn.Module:
    """A Llama, changed in place: a convolution before every MLP, and activations with a learned slope."""
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.PReLU()
        layer.mlp = nn.Sequential(CausalConvolution(model.config.hidden_size), layer.mlp)
    return model.eval()
