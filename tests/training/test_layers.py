"""Layers without a rule of their own: differentiated example by example, or named in an error."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from peft import PromptTuningConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from raydp.training import layers
from raydp.training.clipping import ClippedGradients
from raydp.training.layers import Use
from raydp.training.thresholds import Clipping
from tests.training.test_clipping import TOLERANCE, batch_of, llama, losses, relative_error, soft_prompt

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


class Doubled(nn.Linear):
    """Two outputs."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x), x


class Outer(nn.Module):
    """Calls what is in it in a way of its own."""

    def __init__(self, inner: nn.Module, call) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(self.inner, x)


class Gated(OffsetNorm):
    """A norm that may be given more than the input, as Mamba's."""

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x if gate is None else x * gate)


class Centred(nn.Linear):
    """Mixes the examples: their mean is subtracted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


class CentredNorm(OffsetNorm):
    """The same under the name of a norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


class Noisy(nn.Linear):
    """Stochastic, whatever the mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(F.dropout(x, training=True))


class Counting(nn.Linear):
    """Stateful."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Overwriting(nn.Linear):
    """Changes its own input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(2))


def features() -> torch.Tensor:
    return torch.randn(SIZE, 5)


AT_THE_START = {
    "LSTM": (nn.LSTM(5, 5), "LSTM .*several tensors"),
    "BatchNorm1d": (nn.BatchNorm1d(5, track_running_stats=False), "BatchNorm1d .*mixes the examples"),
    "Bilinear": (nn.Bilinear(5, 5, 5), "Bilinear .*2 inputs"),
    "MultiheadAttention": (nn.MultiheadAttention(5, 1), "MultiheadAttention .*3 inputs"),
    "ParameterList": (nn.ParameterList([torch.zeros(5)]), "ParameterList .*0 inputs"),
    "an embedding that rescales itself": (nn.Embedding(5, 5, max_norm=1.0), "Embedding .*max_norm"),
    "weight normalisation": (nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)), "ParametrizationList"),
}


@pytest.mark.parametrize("kind", AT_THE_START)
def test_a_layer_that_nothing_supports_is_named_before_the_first_step(kind: str) -> None:
    inner, message = AT_THE_START[kind]
    model = Outer(inner, None).eval()
    with pytest.raises(ValueError, match=message) as raised:
        ClippedGradients(model, dict(model.named_parameters()), Clipping(1.0))
    assert "'inner" in str(raised.value), "its place in the model"


IN_THE_FIRST_PASS = {
    "two outputs": (Doubled(5, 5), lambda m, x: m(x)[0], "Doubled 'inner': it returned a tuple"),
    "two inputs": (Gated(5), lambda m, x: m(x, gate=x), "Gated 'inner': it was called with 2 inputs"),
    "examples mixed": (Centred(5, 5), lambda m, x: m(x), "Centred 'inner': its result for an example alone"),
    "examples mixed in a norm": (CentredNorm(5), lambda m, x: m(x), "CentredNorm 'inner': its result for an example"),
    "stochastic": (Noisy(5, 5), lambda m, x: m(x), "Noisy 'inner': it cannot be computed for one example alone"),
    "stateful": (Counting(5, 5), lambda m, x: m(x), "Counting 'inner': its result for an example alone"),
    "input changed by the layer": (
        Overwriting(5, 5), lambda m, x: m(x * 1), "Overwriting 'inner': it cannot .* in-place"
    ),
    "input changed after the layer": (
        nn.Linear(5, 5), lambda m, x: [h := x * 1, m(h), h.add_(1)][1], "Linear 'inner': its input is changed in place"
    ),
    "examples not first": (nn.Linear(5, 5), lambda m, x: m(x[None]).squeeze(0), "Linear 'inner': its input .1, 4, 5."),
    "weight read directly": (nn.Linear(5, 5), lambda m, x: m(x) + x @ m.weight, "'inner.weight'.*directly"),
    "weight read in a list": (
        nn.Linear(5, 5), lambda m, x: m(x) + torch.cat([m.weight, x])[:SIZE], "'inner.weight', which cat reads directly"
    ),
    "called, but without a part": (
        nn.Linear(5, 5), lambda m, x: [m(x), x.requires_grad_()][1], "inner.bias, inner.weight, which took none"
    ),
    "not called": (nn.Linear(5, 5), lambda m, x: x.requires_grad_(), "inner.bias, inner.weight, which took none"),
}  # fmt: skip


@pytest.mark.parametrize("kind", IN_THE_FIRST_PASS)
def test_a_layer_that_nothing_supports_is_named_in_the_first_pass(kind: str) -> None:
    inner, call, message = IN_THE_FIRST_PASS[kind]
    x, model = features(), Outer(inner, call).eval()
    with pytest.raises(ValueError, match=message):
        clipped_sum(model, x, 1.0)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()), "nothing is left behind"


def test_a_soft_prompt_that_the_model_does_not_read_is_named() -> None:
    """As peft's own forward reads it: once for all examples."""
    model = get_peft_model(llama(tied=True), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")).eval()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    batch = batch_of(3, 6)
    engine = ClippedGradients(model, parameters, Clipping(1.0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    with pytest.raises(ValueError, match=r"Embedding 'prompt_encoder.default.embedding': its input .1, 2. has no row"):
        engine.accumulate(lambda: model(batch.input_ids).logits.logsumexp(dim=(1, 2)), total)
    with pytest.raises(ValueError, match=r"prompt_encoder.default.embedding.weight, which took none"):
        engine.accumulate(lambda: losses(_unprompted(model), batch), total)
    model.active_peft_config.inference_mode = True
    engine = ClippedGradients(model, parameters, Clipping(1.0))
    with pytest.raises(ValueError, match=r"'prompt_encoder.default.embedding.weight', which .* reads directly"):
        engine.accumulate(lambda: model(batch.input_ids).logits.logsumexp(dim=(1, 2)), total)


def test_a_soft_prompt_in_fp32_before_a_base_in_bf16() -> None:
    """Against the sum of autograd's own gradients of the same pass: activations round alike, sums are in fp32."""
    model = soft_prompt(llama(tied=True).bfloat16())
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    batch, (name,) = batch_of(5, 9), parameters
    assert parameters[name].dtype == torch.float32
    (expected,) = torch.autograd.grad(losses(model, batch).sum(), list(parameters.values()))
    total = {name: torch.zeros_like(expected)}
    ClippedGradients(model, parameters, Clipping(1e3)).accumulate(lambda: losses(model, batch), total)
    assert relative_error(total, {name: expected.double()}) <= TOLERANCE


def test_a_layer_without_a_rule_under_autocast() -> None:
    """Against autograd's own sum in the same types; bf16 products, 8 bits of mantissa."""
    x = torch.randn(SIZE, 9, 5)
    model = nn.Sequential(nn.Linear(5, 5), nn.Conv1d(9, 4, 3), nn.PReLU(), nn.LayerNorm((4, 3))).eval()
    parameters = dict(sorted(model.named_parameters()))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def cast() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, x)

    ClippedGradients(model, parameters, Clipping(1e4)).accumulate(cast, total)
    grads = torch.autograd.grad(cast().sum(), list(parameters.values()))
    expected = {name: g.double() for name, g in zip(parameters, grads, strict=True)}
    assert relative_error(total, expected) <= 2 * 2**-8


def _unprompted(model: nn.Module) -> nn.Module:
    base = model.get_base_model()
    base.get_input_embeddings().register_forward_hook(lambda module, args, output: output.requires_grad_())
    return base


@pytest.mark.parametrize("kind", ["linear", "conv1d", "embedding"])
@pytest.mark.parametrize(("positions", "inputs", "outputs"), [(300, 8, 8), (8, 64, 64), (64, 64, 4), (2, 3, 500)])
def test_what_a_norm_takes_in_memory_is_bounded_by_what_the_layer_keeps(
    kind: str, positions: int, inputs: int, outputs: int
) -> None:
    """No tensor on the way is larger than input and output gradient together."""
    size = 3
    g = torch.randn(size, positions, outputs)
    x = torch.randint(0, 9, (size, positions)) if kind == "embedding" else torch.randn(size, positions, inputs)
    use = Use(kind=kind, x=x, g=g)
    with _Largest() as largest:
        gradient = use.gradient()
        norms = use.norm_squared() if gradient is None else gradient.flatten(1).square().sum(dim=1)
    assert largest.numel <= g.numel() + x.numel()
    shape = {"linear": (outputs, inputs), "conv1d": (inputs, outputs), "embedding": (9, outputs)}[kind]
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


def test_the_rule_for_norms_is_not_taken_from_the_name() -> None:
    x = torch.randn(2, 3, 5)
    assert layers.scales_last_dimension(nn.LayerNorm(5), x)
    assert layers.scales_last_dimension(OffsetNorm(5), x)
    assert not layers.scales_last_dimension(ExponentialNorm(5), x)
    assert not layers.scales_last_dimension(CentredNorm(5), x)
    assert not layers.scales_last_dimension(CentredNorm(5), x[:1]), "whatever the micro-batch"
    assert not layers.scales_last_dimension(nn.GroupNorm(3, 3), x)
    assert not layers.scales_last_dimension(nn.GroupNorm(5, 5), torch.randn(2, 5, 5))


class CrampedNorm(CentredNorm):
    """Fits into memory as a part of the model; once more beside it, only at the second attempt."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            raise torch.OutOfMemoryError
        return super().forward(x)


def test_a_norm_whose_trial_does_not_fit_is_not_believed() -> None:
    layer = CrampedNorm(5).eval()
    parameters = dict(layer.named_parameters())
    engine, total = ClippedGradients(layer, parameters, Clipping(1.0)), {"weight": torch.zeros(5)}
    x = torch.randn(3, 2, 5)
    with pytest.raises(torch.OutOfMemoryError):
        engine.accumulate(lambda: layer(x).square().sum(dim=(1, 2)), total)
    with pytest.raises(ValueError, match="its result for an example alone is not that in a batch"):
        engine.accumulate(lambda: layer(x).square().sum(dim=(1, 2)), total)
