"""ResNet-18 for small images (He et al. 2016, with CIFAR's stem), normalised over groups of channels.

Batch normalisation would mix the examples of a batch, so that no example would have its own gradient (Wu and He 2018
for group normalisation; De et al. 2022, section 3.1, for its use under DP-SGD).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

GROUPS = 32
WIDTHS = (64, 128, 256, 512)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut: [B, inputs, H, W] -> [B, outputs, H / stride, W / stride]."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(GROUPS, outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return [B, outputs, H / stride, W / stride]."""
        inner = F.relu(self.first_norm(self.first(images)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


def resnet18(channels: int, num_classes: int) -> nn.Sequential:
    """Build ResNet-18: [B, channels, H, W] -> [B, num_classes]; 11.2 million weights for 3 channels, 100 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False), nn.GroupNorm(GROUPS, WIDTHS[0]), nn.ReLU(),
    ]  # fmt: skip
    inputs = WIDTHS[0]
    for width in WIDTHS:
        layers += [ResidualBlock(inputs, width, 1 if width == WIDTHS[0] else 2), ResidualBlock(width, width, 1)]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))
