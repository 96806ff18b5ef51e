"""A language model with layers that the gradient engine has no rule for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaForCausalLM


class CausalConvolution(nn.Module):
    """A convolution over three tokens, separate for each channel, as in state space models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel_size=3, groups=width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, T, H] -> [B, T, H]."""
        convolved: torch.Tensor = self.convolution(F.pad(hidden.mT, (2, 0)))
        return convolved.mT


def with_odd_layers(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Put a convolution before each MLP of a Llama, and a slope into its activations, in place."""
    for layer in model.model.layers:
        mlp = layer.get_submodule("mlp")
        mlp.act_fn = nn.PReLU()
        layer.mlp = nn.Sequential(CausalConvolution(model.config.hidden_size), mlp)
    model.eval()
    return model
