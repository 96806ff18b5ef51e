"""Layers that nothing supports are named in an error, before the first step where that can be
seen."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from peft import PromptTuningConfig, get_peft_model
from torch import nn

from raydp.training.gradients import layers
from raydp.training.gradients.clipping import ClippedGradients
from raydp.training.gradients.thresholds import Clipping
from tests.training.test_clipping import batch_of, llama, losses
from tests.training.test_layers import SIZE, ExponentialNorm, OffsetNorm, clipped_sum


@pytest.fixture(autouse=True)
def _fixed() -> None:
    torch.manual_seed(0)


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
    "BatchNorm1d": (
        nn.BatchNorm1d(5, track_running_stats=False),
        "BatchNorm1d .*mixes the examples",
    ),
    "Bilinear": (nn.Bilinear(5, 5, 5), "Bilinear .*2 inputs"),
    "MultiheadAttention": (nn.MultiheadAttention(5, 1), "MultiheadAttention .*3 inputs"),
    "ParameterList": (nn.ParameterList([torch.zeros(5)]), "ParameterList .*0 inputs"),
    "an embedding that rescales itself": (nn.Embedding(5, 5, max_norm=1.0), "Embedding .*max_norm"),
    "weight normalisation": (
        nn.utils.parametrizations.weight_norm(nn.Linear(5, 5)),
        "ParametrizationList",
    ),
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
        nn.Linear(5, 5), lambda m, x: [m(x), x.requires_grad_()][1], "inner.bias, inner.weight, which took no part"
    ),
    "not called": (nn.Linear(5, 5), lambda m, x: x.requires_grad_(), "inner.bias, inner.weight, which took no part"),
}  # fmt: skip


@pytest.mark.parametrize("kind", IN_THE_FIRST_PASS)
def test_a_layer_that_nothing_supports_is_named_in_the_first_pass(kind: str) -> None:
    inner, call, message = IN_THE_FIRST_PASS[kind]
    x, model = features(), Outer(inner, call).eval()
    with pytest.raises(ValueError, match=message):
        clipped_sum(model, x, 1.0)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()), (
        "nothing is left behind"
    )


def test_a_soft_prompt_that_the_model_does_not_read_is_named() -> None:
    """As peft's own forward reads it: once for all examples."""
    model = get_peft_model(
        llama(tied=True), PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    ).eval()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    batch = batch_of(3, 6)
    engine = ClippedGradients(model, parameters, Clipping(1.0))
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    with pytest.raises(
        ValueError,
        match=r"Embedding 'prompt_encoder.default.embedding': its input .1, 2. has no row",
    ):
        engine.accumulate(lambda: model(batch.input_ids).logits.logsumexp(dim=(1, 2)), total)
    with pytest.raises(
        ValueError, match=r"prompt_encoder.default.embedding.weight, which took no part"
    ):
        engine.accumulate(lambda: losses(_unprompted(model), batch), total)
    model.active_peft_config.inference_mode = True
    engine = ClippedGradients(model, parameters, Clipping(1.0))
    with pytest.raises(
        ValueError, match=r"'prompt_encoder.default.embedding.weight', which .* reads directly"
    ):
        engine.accumulate(lambda: model(batch.input_ids).logits.logsumexp(dim=(1, 2)), total)


def _unprompted(model: nn.Module) -> nn.Module:
    base = model.get_base_model()
    base.get_input_embeddings().register_forward_hook(
        lambda module, args, output: output.requires_grad_()
    )
    return base


def test_the_rule_for_norms_is_not_taken_from_the_name() -> None:
    x = torch.randn(2, 3, 5)
    assert layers.norm_rule(nn.LayerNorm(5), x) == "norm"
    assert layers.norm_rule(OffsetNorm(5), x) == "shifted_norm"
    assert layers.norm_rule(ExponentialNorm(5), x) == "vjp"
    assert layers.norm_rule(CentredNorm(5), x) == "vjp"
    assert layers.norm_rule(CentredNorm(5), x[:1]) == "vjp", "whatever the micro-batch"
    assert layers.norm_rule(nn.GroupNorm(3, 3), x) == "vjp"
    assert layers.norm_rule(nn.GroupNorm(5, 5), torch.randn(2, 5, 5)) == "vjp"


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
