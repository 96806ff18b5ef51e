"""Layers without a rule of their own: differentiated example by example, or named in an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.layers import Use
from raydp.training.gradients.thresholds import Clipping
from tests.training.test_clipping import (
    TOLERANCE,
    batch_of,
    llama,
    losses,
    prefix,
    relative_error,
    soft_prompt,
)

pytestmark = pytest.mark.extensions("soft_prompt", "prefix")

SIZE = 4


class Gain(nn.Module):
    """A layer of one's own, not linear in its weights, with another trained layer inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(3, width))
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.gain.exp().prod(dim=0)) * self.gain[0]


class ScaledEmbedding(nn.Embedding):
    """As Gemma's: what Embedding does, and more."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * 7


class OffsetNorm(nn.Module):
    """As Gemma's RMSNorm: the weight is an offset from 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:]) * (1 + self.weight)


class ExponentialNorm(OffsetNorm):
    """Called a norm, but not affine in its weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:]) * self.weight.exp()


class Shared(nn.Module):
    """A square weight that a linear layer, a Conv1D, an embedding and a convolution share."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__()
        everything = {
            "linear": nn.Linear(5, 5), "conv1d": Conv1D(5, 5), "embedding": nn.Embedding(5, 5),
            "norm": nn.Sequential(nn.Flatten(2), nn.LayerNorm((5, 5), bias=False)),
        }  # fmt: skip
        self.parts = nn.ModuleDict({name: everything[name] for name in parts})
        weight = nn.Parameter(torch.randn(5, 5))
        for part in self.parts.values():
            (part[1] if isinstance(part, nn.Sequential) else part).weight = weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.one_hot(ids % 5, 5).float() + 0.1 * ids[..., None].float()
        for name, part in self.parts.items():
            if name == "embedding":
                hidden = hidden + part(ids % 5)
            elif name == "norm":
                hidden = hidden + part[1](torch.stack([hidden] * 5, dim=-2))[..., 0, :]
            else:
                hidden = torch.tanh(part(hidden))
        return hidden


def images() -> torch.Tensor:
    return torch.randn(SIZE, 4, 6, 5)


def ids() -> torch.Tensor:
    return torch.randint(0, 11, (SIZE, 9))


SUPPORTED = {
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, groups=2), lambda: torch.randn(SIZE, 4, 9)),
    "Conv2d, in-place ReLU, GroupNorm": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(inplace=True), nn.GroupNorm(3, 6), nn.Conv2d(6, 2, 2)), images
    ),
    "GroupNorm with as many channels as columns": (lambda: nn.GroupNorm(2, 4), lambda: images()[..., :4]),
    "BatchNorm with its running statistics": (lambda: nn.BatchNorm2d(4), images),
    "InstanceNorm": (lambda: nn.InstanceNorm2d(4, affine=True), images),
    "2-D norm weights": (lambda: nn.LayerNorm((6, 5)), images),
    "PReLU": (lambda: nn.PReLU(4), images),
    "a layer of one's own with another inside": (lambda: Gain(5), images),
    "another Embedding": (lambda: ScaledEmbedding(11, 5), ids),
    "an embedding with padding": (lambda: nn.Embedding(11, 5, padding_idx=3), ids),
    "an embedding of one id": (lambda: nn.Embedding(11, 5), lambda: torch.arange(SIZE) % 2),
    "an embedding of more ids than its width": (lambda: nn.Embedding(11, 2), lambda: ids().repeat(1, 9)),
    "a norm with an offset": (lambda: OffsetNorm(5), images),
    "a norm in name": (lambda: ExponentialNorm(5), images),
    "a linear layer without positions": (lambda: nn.Linear(5, 3), lambda: torch.randn(SIZE, 5)),
    "a layer used twice": (
        lambda: nn.Sequential(conv := nn.Conv1d(4, 4, 3), nn.Tanh(), conv), lambda: torch.randn(SIZE, 4, 9)
    ),
    "shared by linear and Conv1D": (lambda: Shared(("linear", "conv1d")), ids),
    "shared by embedding and linear": (lambda: Shared(("embedding", "linear")), ids),
    "shared by embedding, linear and Conv1D": (lambda: Shared(("embedding", "linear", "conv1d")), ids),
    "shared with a layer without a rule": (lambda: Shared(("embedding", "linear", "norm")), ids),
}  # fmt: skip


def clipped_sum(model: nn.Module, x: torch.Tensor, c: float) -> dict[str, torch.Tensor]:
    parameters = dict(sorted(model.named_parameters()))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    ClippedGradients(model, parameters, Clipping(c)).accumulate(lambda: loss(model, x), total)
    return total


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """[B]; every output counts otherwise, and so does every example."""
    output = model(x).flatten(1)
    weights = torch.linspace(-1, 2, output.shape[1]) * torch.linspace(0.1, 3, len(output))[:, None]
    return (output.sin() * weights).sum(dim=1)


def clipped_autograd(model: nn.Module, x: torch.Tensor, c: float) -> dict[str, torch.Tensor]:
    """Each example's gradient by torch, clipped in float64."""
    parameters = dict(sorted(model.named_parameters()))
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for example in loss(model, x):
        grads = torch.autograd.grad(example, list(parameters.values()), retain_graph=True)
        norm = torch.sqrt(sum(g.double().square().sum() for g in grads))
        for name, g in zip(parameters, grads, strict=True):
            total[name] += g.double() * min(1.0, c / norm.item())
    return total


@pytest.fixture(autouse=True)
def _fixed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", SUPPORTED)
@pytest.mark.parametrize("c", [0.5, 1e4], ids=["clipped", "not clipped"])
def test_equals_clipped_autograd(kind: str, c: float) -> None:
    build, draw = SUPPORTED[kind]
    model, x = build().eval(), draw()
    assert relative_error(clipped_sum(model, x, c), clipped_autograd(model, x, c)) <= TOLERANCE


@pytest.mark.parametrize("build", [soft_prompt, prefix])
def test_virtual_tokens_in_fp32_before_a_base_in_bf16(
    build: Callable[[nn.Module], nn.Module],
) -> None:
    """Against the sum of autograd's own gradients of the same pass: activations round alike, sums
    are in fp32."""
    model = build(llama(tied=True).bfloat16())
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    batch, (name,) = batch_of(5, 9), parameters
    assert parameters[name].dtype == torch.float32
    (expected,) = torch.autograd.grad(losses(model, batch).sum(), list(parameters.values()))
    total = {name: torch.zeros_like(expected)}
    ClippedGradients(model, parameters, Clipping(1e3)).accumulate(
        lambda: losses(model, batch), total
    )
    assert relative_error(total, {name: expected.double()}) <= TOLERANCE


def test_a_layer_without_a_rule_under_autocast() -> None:
    """Against autograd's own sum in the same types; bf16 products, 8 bits of mantissa."""
    x = torch.randn(SIZE, 9, 5)
    model = nn.Sequential(
        nn.Linear(5, 5), nn.Conv1d(9, 4, 3), nn.PReLU(), nn.LayerNorm((4, 3))
    ).eval()
    parameters = dict(sorted(model.named_parameters()))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def cast() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, x)

    ClippedGradients(model, parameters, Clipping(1e4)).accumulate(cast, total)
    grads = torch.autograd.grad(cast().sum(), list(parameters.values()))
    expected = {name: g.double() for name, g in zip(parameters, grads, strict=True)}
    assert relative_error(total, expected) <= 2 * 2**-8


@pytest.mark.parametrize("kind", ["linear", "conv1d", "embedding"])
@pytest.mark.parametrize(
    ("positions", "inputs", "outputs"), [(300, 8, 8), (8, 64, 64), (64, 64, 4), (2, 3, 500)]
)
def test_the_memory_of_a_norm_is_bounded_by_the_layers_input_and_gradient(
    kind: str, positions: int, inputs: int, outputs: int
) -> None:
    """No tensor on the way is larger than input and output gradient together."""
    size = 3
    g = torch.randn(size, positions, outputs)
    x = (
        torch.randint(0, 9, (size, positions))
        if kind == "embedding"
        else torch.randn(size, positions, inputs)
    )
    use = Use(kind=kind, x=x, g=g)
    with _Largest() as largest:
        gradient = use.gradient()
        norms = use.norm_squared() if gradient is None else gradient.flatten(1).square().sum(dim=1)
    assert largest.numel <= g.numel() + x.numel()
    shape = {"linear": (outputs, inputs), "conv1d": (inputs, outputs), "embedding": (9, outputs)}[
        kind
    ]
    expected = use.written_out(torch.Size(shape)).double().flatten(1).square().sum(dim=1)
    torch.testing.assert_close(norms.double(), expected, rtol=TOLERANCE, atol=0)


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The most elements that one result of an operation had."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result
