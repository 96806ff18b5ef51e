"""The papers' classification networks, as transformers models.

They are saved, hashed, shared and loaded like other models.

A network's name determines its untrained weights, which come from one public seed. For example,
"mlp:1x8x8:10" is the perceptron for inputs of shape [1, 8, 8] and 10 classes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel

from raydp.extensions.classification.names import FORM, MODEL_TYPE
from raydp.models.one_at_a_time import one_at_a_time
from raydp.system.cache import cache_dir, stored_once

GROUPS = 32
"""Number of groups of channels that a residual block normalises over."""
WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages of a ResNet-18."""
SEED = 0
_SEEDING = threading.Lock()
"""Lock for drawing initial weights: torch has one generator for all threads of a process."""


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Draw the initial weights of layers that are made in the block from the seed."""
    # fork_rng restores the process's generator: nothing seeds globally.
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class NetworkConfig(PretrainedConfig):
    """Definition of a network: architecture, shape of an input and number of classes."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        architecture: str = "linear",
        input_shape: tuple[int, ...] = (1,),
        num_classes: int = 2,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)  # type: ignore[arg-type]  # the fields that transformers saves
        self.architecture, self.input_shape, self.num_classes = (
            architecture,
            list(input_shape),
            num_classes,
        )


class Network(PreTrainedModel):
    """A classifier: inputs [B, *input_shape] fp32 -> logits [B, num_classes]."""

    config_class = NetworkConfig

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__(config)
        self.layers: nn.Sequential = ARCHITECTURES[config.architecture](
            tuple(config.input_shape), config.num_classes
        )
        # post_init would otherwise initialise again; `_init_weights` keeps torch's own values.
        self.post_init()  # type: ignore[no-untyped-call]  # transformers' own has no types

    def _init_weights(self, module: nn.Module) -> None:
        """Keep torch's own initialisation."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return [B, num_classes] logits."""
        logits: torch.Tensor = self.layers(inputs)
        return logits


def _linear(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(_size(shape), num_classes))


def _mlp(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    return _perceptron(shape, num_classes, (64,))


def _purchase(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    return _perceptron(shape, num_classes, (1024, 512, 256))


def _perceptron(shape: tuple[int, ...], num_classes: int, widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    sizes = (_size(shape), *widths)
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], num_classes))


def _cnn(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    channels = _channels("cnn", shape, 4)
    # One line for each stage.
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(128, num_classes),
    )  # fmt: skip


def _cnn_mnist(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    channels = _channels("cnn-mnist", shape, 14)
    # The sides of the image after both convolutions and both poolings.
    height, width = ((((side - 2) // 2 - 4) // 2) for side in shape[1:])
    # One line for each stage.
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * height * width, 32), nn.ReLU(), nn.Linear(32, num_classes),
    )  # fmt: skip


def _cnn_cifar(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    channels = _channels("cnn-cifar", shape, 8)
    # One line for each stage.
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(128, num_classes),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut: [B, inputs, H, W] -> [B, outputs, H / s, W / s].

    It normalises over groups of channels (Wu and He 2018; for DP-SGD, De et al. 2022, section 3.1).
    Batch normalisation would mix the examples of a batch, so that no example would have its own
    gradient.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(GROUPS, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(GROUPS, outputs)
        self.shortcut: nn.Module = nn.Identity()
        # A projection bridges different shapes (option B of He et al. 2016).
        if stride > 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(GROUPS, outputs))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return [B, outputs, H / stride, W / stride]."""
        inner = F.relu(self.first_norm(self.first(images)))
        return F.relu(self.second_norm(self.second(inner)) + self.shortcut(images))


def _resnet18(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """Build ResNet-18 with CIFAR's stem (He et al. 2016): 11.2 million weights for 100 classes."""
    channels = _channels("resnet18", shape, 8)
    # CIFAR's stem: 3 x 3 without pooling, since the images are small.
    layers: list[nn.Module] = [
        nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False),
        nn.GroupNorm(GROUPS, WIDTHS[0]),
        nn.ReLU(),
    ]
    inputs = WIDTHS[0]
    # Four stages of two blocks; all but the first halve the image.
    for width in WIDTHS:
        layers += [
            ResidualBlock(inputs, width, 1 if width == WIDTHS[0] else 2),
            ResidualBlock(width, width, 1),
        ]
        inputs = width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)
    )


ARCHITECTURES: dict[str, Callable[[tuple[int, ...], int], nn.Sequential]] = {
    "linear": _linear,  # multinomial logistic regression
    "mlp": _mlp,
    "purchase": _purchase,  # Nasr et al. 2018; Kaplan et al. 2024, section 4.2.1
    "cnn": _cnn,
    "cnn-mnist": _cnn_mnist,  # Opacus's example; Guo 2024, section 5.3
    # Opacus's example, which pools by average; Guo 2024, section 5.4, says by maximum
    "cnn-cifar": _cnn_cifar,
    "resnet18": _resnet18,  # Kaplan et al. 2024, section 4.2.1
}
"""Name -> builder of the layers, from (input shape, number of classes)."""


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _channels(name: str, shape: tuple[int, ...], smallest: int) -> int:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ValueError(
            f"model.name {name!r} must be given images of at least {smallest} x {smallest}, got "
            f"inputs of {'x'.join(map(str, shape))}. Use mlp or linear."
        )
    return shape[0]


@dataclass(frozen=True, kw_only=True)
class NetworkName:
    """A network's name, such as "mlp:1x8x8:10", in parts: with a seed, they fix its weights."""

    architecture: str
    input_shape: tuple[int, ...]
    num_classes: int

    @classmethod
    def parse(cls, name: str) -> NetworkName | None:
        """Parse a name such as "mlp:1x8x8:10"; return None for other names."""
        match = FORM.fullmatch(name)
        if match is None or match[1] not in ARCHITECTURES:
            return None
        shape = tuple(map(int, match[2].split("x")))
        return cls(architecture=match[1], input_shape=shape, num_classes=int(match[3]))

    def __str__(self) -> str:
        return f"{self.architecture}:{'x'.join(map(str, self.input_shape))}:{self.num_classes}"

    def build(self, seed: int = SEED, *, new_classes: int = 0) -> Network:
        """Build the untrained network from a seed, with `new_classes` more classes of weight 0."""
        config = NetworkConfig(self.architecture, self.input_shape, self.num_classes)
        with initial_weights(seed):
            network = Network(config)
        network.train(False)
        if new_classes:
            add_classes(network, new_classes)
        return network

    def folder(self) -> Path:
        """Return the cache's folder of the untrained weights, which the first call writes."""
        # torch's initialisation may change between versions, so the version is in the name.
        digest = hashlib.sha256(f"{self} {SEED} {torch.__version__}".encode()).hexdigest()[:16]
        target = cache_dir() / "networks" / f"{self.architecture}-{digest}"
        with one_at_a_time():
            return stored_once(target, lambda part: self.build().save_pretrained(part))


def add_classes(network: Network, count: int) -> None:
    """Add classes after the network's own, with weights of zero."""
    old = network.layers[-1]
    assert isinstance(old, nn.Linear), "a network ends in a linear layer"
    # The layer is built on "meta" and then allocated, so that no random number is drawn.
    new = nn.Linear(old.in_features, old.out_features + count, device="meta").to_empty(
        device=old.weight.device
    )
    with torch.no_grad():
        # With weights of zero, no new class has an advantage before training.
        for wide, narrow in ((new.weight, old.weight), (new.bias, old.bias)):
            wide.zero_()
            wide[: old.out_features] = narrow
    network.layers[-1] = new
    network.config.num_classes += count
